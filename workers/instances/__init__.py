"""The instance host: starts, watches and ends the processes of tensor models on one machine, as the router commands.
May import `router/instances`, `router/tensor_memory` and `workers/backends/python`."""
