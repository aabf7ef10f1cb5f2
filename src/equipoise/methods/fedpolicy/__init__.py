"""FedPolicy: a policy chooses, per client, which blocks of the global model it installs."""
