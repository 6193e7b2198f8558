"""The worker groups of a cluster as planner, updates and operators see them: interfaces, and plain values of what is to
change. It may import `config`, and the router's messages and status."""
