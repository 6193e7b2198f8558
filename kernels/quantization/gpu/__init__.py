"""fp8 conversions for Triton kernels. Imported on request. Imports nothing of the project."""
