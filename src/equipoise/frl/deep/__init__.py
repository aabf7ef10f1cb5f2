"""Agents with networks: environments stepped over all agents and copies at once, and a learner of stacked agents."""
