"""`Ops` in Triton, above the kernel families. Imported on request. May import all of kernels."""
