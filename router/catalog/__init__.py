"""What is served under a model's name, beside its weights. It imports nothing else of `router`."""
