"""What the router, its workers and its front processes say to each other: frames, and the values in them. It imports
only `kv_transfer` and `process`, so that a worker can import it without a router."""
