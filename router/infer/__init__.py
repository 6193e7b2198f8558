"""Serves tensor models: the life cycle of their versions and instances, and the way of a request from its check to its
last response. It imports `batching`, `instances`, `model_repository`, `tensor_memory` and what lies below them."""
