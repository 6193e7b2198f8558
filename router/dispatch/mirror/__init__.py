"""Which requests are copied to a version that gets no clients' requests, and how the answers compare. It may import
`requests` and `status`."""
