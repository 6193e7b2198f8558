"""Decides which workers compute a request. It connects the dispatcher to a policy and keeps the load of the workers
that it placed requests on. It imports `registry`, `requests`, `status` and its policies."""
