"""Serves the models of a repository: the life cycle of their versions and instances, and the service that the API of
tensors calls. It imports `infer.requests`, `instances`, `model_repository` and what lies below them."""
