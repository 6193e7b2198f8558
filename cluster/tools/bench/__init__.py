"""`slipstream bench`: the command, and the outcome of a run as tables, JSON and a comparison with an earlier one. It
may import `terminal`, `state`, `report`, `workload` and the folders below it."""
