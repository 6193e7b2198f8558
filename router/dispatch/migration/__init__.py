"""Moves running sequences to other decode workers. It imports `dispatch/table`, `placement` and what lies below."""
