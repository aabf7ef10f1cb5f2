"""Histogram gradient boosting whose statistics are sums over clients.

Clients count their values in cells, from which the server derives common bins; then they send, per
level of a tree, the sums of gradients and hessians per bin of every open node. Sums of clients are
those of all rows together, so that the federated ensemble is the pooled one.
"""
