"""The two RPCs of inference: one request with one response, and a stream of both. It imports the `calls`, the
`messages`, `access` and what both protocols of KServe share."""
