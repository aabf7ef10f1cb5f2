"""Client-level differential privacy: options, accounting and the clients' own budgets.

docs/how-to/privacy.md says what is guaranteed, and to whom. The mechanism itself is in
`equipoise.wrappers.differential_privacy`.
"""
