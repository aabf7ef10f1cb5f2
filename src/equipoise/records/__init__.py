"""What a run writes down, as types: rounds, scores, summary, and the folder that holds them."""
