"""What the router, its workers and its front processes say to each other: frames, and the values in them. It imports
only `structured_output/json_schema` and `kv_transfer/api`, so that a worker can import it without a router."""
