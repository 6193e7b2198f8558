"""Which instances a version of a model has, and how they live: pure state, without clock and I/O. May import what a
model's specification is (`router/tensors`)."""
