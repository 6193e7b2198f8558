"""Decides which workers compute a request. It connects the dispatcher to a policy and keeps the load of the workers
that it placed requests on. It imports its `policies`, `registry`, `requests` and what lies below."""
