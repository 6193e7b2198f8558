"""The program that runs one instance of a backend's model: batches of requests become arrays, and arrays responses. It
imports `backends`, and `backends.python.instance`, which speaks with the router."""
