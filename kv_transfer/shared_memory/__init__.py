"""Between ranks of one host: the receiver copies pages straight out of the sender's pool. Imports `kv_transfer.api`,
`memory` and `sockets`."""
