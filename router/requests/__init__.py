"""One request: its state, its record, its output so far, its stream. It imports `protocol` and `registry`."""
