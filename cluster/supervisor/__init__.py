"""Keeps the members of a cluster alive and restarts those that die; implements `FleetPort` with them. It may import
`config`, `fleet`, `ray`, `repository`, `state` and `supervisor.members`."""
