"""Deployment on Flower: the same methods, with clients on separate and unreliable machines.

``codec``, ``client_state``, ``node`` and ``remote_executor`` do not depend on Flower; ``wire``,
``client_app`` and ``server_app`` are the thin part that does.
"""
