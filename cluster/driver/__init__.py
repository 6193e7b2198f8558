"""Brings a cluster up, watches it and ends it in order; and the guardian, which outlives drivers and starts the next
one. It may import all of `cluster` but `commands` and `tools`."""
