"""Deployment on Flower: the same methods on clients that are separate, real and unreliable.

``codec``, ``state``, ``node`` and ``remote`` know nothing of Flower; ``wire``, ``client_app`` and ``server_app``
are the thin part that does.
"""
