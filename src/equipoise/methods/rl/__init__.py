"""Methods whose clients are agents in environments of their own."""
