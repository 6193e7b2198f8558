"""Explains one request from its record: where it was when, what was decided and why. It imports `requests`,
`infer.requests` and `protocol`."""
