"""Copies of requests for a version that gets no clients' requests, and the comparison of the answers. It may import
`requests`, `status` and the dispatcher of a model."""
