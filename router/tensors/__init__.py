"""Tensors, the requests that carry them, and the models that take them, as data: what the tensor API, the batchers and
the instances have in common. It imports only `protocol`."""
