"""The router and the worker groups as Ray actors: their processes, and how the driver starts, calls and ends them. It
may import `config`, `fleet`, `processes` and `ray`."""
