"""Divides a budget of workers among the models of a cluster: a pure policy, and the loop that runs it in the driver. It
may import `config`, `fleet` and `planner`."""
