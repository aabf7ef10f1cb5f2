"""PAGE: the game (page.py), its options and variants, its agents, and energy budgets."""
