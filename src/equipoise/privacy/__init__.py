"""Client-level differential privacy: options, accounting and the clients' own budgets.

docs/reference/privacy-guarantees.md says what is guaranteed, and to whom. The mechanism is in
`equipoise.wrappers.differential_privacy`.
"""
