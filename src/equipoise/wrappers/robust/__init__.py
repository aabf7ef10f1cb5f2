"""Aggregates that a minority of hostile clients cannot move far: the rules, and any method under one of them."""
