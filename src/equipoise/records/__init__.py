"""What a run writes down, as types: rounds, scores, summary."""
