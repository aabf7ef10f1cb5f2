"""Agents that decide in methods: DDPG, DQN and their replay buffer."""
