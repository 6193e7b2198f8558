"""API keys, limits per key, usage. It imports `http` for its errors, `config` and `protocol`."""
