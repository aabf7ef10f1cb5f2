"""PAGE and what it is made of: players, actions, energy, when a game has settled."""
