"""Moves running sequences to other decode workers. It imports `dispatch.table` and `placement`."""
