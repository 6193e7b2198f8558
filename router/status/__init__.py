"""What the router counts and reports of its present state, for operators and for the planner. It imports `requests` and
what lies below."""
