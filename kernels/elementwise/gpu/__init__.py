"""Norm and activation in Triton. Imported on request. May import kernels/benchmark."""
