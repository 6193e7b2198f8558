"""Threads, priorities and sockets of a worker process. May import workers/config."""
