"""Shared memory for tensors: the router's own and its leases, mapped files of instances and clients, and the removal of
files whose process is dead. It imports only `tensors` and `process`."""
