"""Reads a configuration file, checks it against the model and this machine, and warns of what is probably a mistake. It
may import `config`, `planner`, `repository` and `terminal`."""
