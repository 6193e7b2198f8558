"""Frames of the instance protocol: their bytes, connections that carry them, and the tensors in them. It imports only
`tensors`, `tensor_memory` and `process`."""
