"""`slipstream batch`: a file of requests in, a file of answers out, through the Batch API of a cluster. It may import
`cluster/state`, `cluster/terminal` and the form of a batch's lines in `router`."""
