"""Simulated time: what devices clients have, how long their rounds take, and when a round of the server ends."""
