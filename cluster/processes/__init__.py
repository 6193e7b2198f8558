"""The operating system's side of a cluster: its processes on this machine, their logs, what cleans up after them, and a
driver's link to its guardian. It imports nothing else of `cluster`."""
