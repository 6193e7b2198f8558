"""OpenTelemetry spans of requests. It imports `requests`, `infer.requests`, `explain`, `config`, and `http` for
incoming headers."""
