"""Placement policies: pure functions of a request and a bounded number of workers. They import `registry`, `requests`
and what lies below."""
