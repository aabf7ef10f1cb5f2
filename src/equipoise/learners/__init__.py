"""What learns, whoever calls it: local SGD for one client and for stacks, DDPG, DQN, their nets and memories."""
