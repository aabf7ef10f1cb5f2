"""FedPolicy and what it is made of: parts of a model, probes, records, policies."""
