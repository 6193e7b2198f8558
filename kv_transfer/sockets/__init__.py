"""Non-blocking sockets between ranks, and how both ends of a link prove that they belong to one cluster. Imports
`kv_transfer.api` only."""
