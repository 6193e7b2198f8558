"""Workloads to measure or to simulate: published traces, and mixes that are made up. It imports nothing else of
`cluster`."""
