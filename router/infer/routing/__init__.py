"""Divides the requests to a tensor model between its versions, and copies some of them to another one. It may import
`router/config`, `router/status` and `router/tensors`."""
