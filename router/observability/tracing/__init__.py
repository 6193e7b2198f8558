"""OpenTelemetry spans of requests. It imports `requests`, `http` for incoming headers, and `explain`."""
