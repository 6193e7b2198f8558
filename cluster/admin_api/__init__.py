"""The admin API of a cluster, an ASGI application in the driver's process: routes for the fleet, the planner and
updates. It may import `config`, `fleet`, `planner`, `repository`, `state` and `update`."""
