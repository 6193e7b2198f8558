"""The ways in which requests with tensors reach a server, all behind `InferClient`. It imports `bench.client` and
`cluster/in_process`."""
