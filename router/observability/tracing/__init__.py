"""OpenTelemetry spans of requests. It imports `requests`, `explain`, `config`, and `http` for incoming headers."""
