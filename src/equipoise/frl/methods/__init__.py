"""Methods whose clients are agents; found like those of `equipoise.methods`."""
