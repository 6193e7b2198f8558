"""The way of tensor requests through one version of a model: their check, their dispatch to instances, their counts and
records. It imports `batching`, `instances` and `tensors`."""
