"""One request: its state, the record of its way, its output so far, its stream. It imports `protocol`, `registry`."""
