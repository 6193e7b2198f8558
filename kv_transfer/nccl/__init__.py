"""Messages over torch.distributed: NCCL between GPUs, gloo between CPUs. Imports `kv_transfer.api` and `sockets`."""
