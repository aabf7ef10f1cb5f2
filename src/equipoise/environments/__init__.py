"""Environments, agents and tasks of federated reinforcement learning."""
