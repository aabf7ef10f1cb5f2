"""Decisions taken by agents: the learner, the methods that use it, and what is measured about them."""
