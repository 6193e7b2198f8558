"""Attention and the writing of keys and values in Triton. Imported on request (`kernels.gpu_modules`). May import
kernels/attention, pages, quantization and benchmark."""
