"""Sampling in Triton, with its reference. Imported on request. May import kernels/benchmark."""
