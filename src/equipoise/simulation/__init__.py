"""The simulation: server loop, executors, client store and simulated clock."""
