"""Language models that the repository of a server within a program names: worker processes on this machine, without
Ray. It imports `cluster/models`, `cluster/sizing` and the router."""
