"""Simulated time: clients' devices, the duration of their rounds, and the end of a server round."""
