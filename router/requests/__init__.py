"""One request: its state, its record, its output so far, its stream. It imports `registry`, `protocol` and
`kv_transfer/api`."""
