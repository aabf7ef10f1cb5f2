"""Federated reinforcement learning: learners that are agents in environments."""
