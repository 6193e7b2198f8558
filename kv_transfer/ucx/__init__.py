"""Messages over UCX: shared memory, TCP or RDMA. Imports `kv_transfer.api`, `memory` and `sockets`."""
