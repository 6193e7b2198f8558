"""Products with dense, fp8 and int4 weights in Triton. Imported on request. May import kernels/quantization and
benchmark."""
