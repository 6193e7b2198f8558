"""The sans-IO dispatcher: it takes events with a time and returns actions. It drives attempts, matches waiting requests
with credits, and follows workers that join and leave. `worker_port` is its shell towards workers, `service` towards
APIs. It imports its own folders, `placement`, `registry`, `requests`, `status` and what lies below."""
