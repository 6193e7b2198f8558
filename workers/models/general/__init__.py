"""Any decoder that transformers can compute, over our pages. Imports transformers, and of our own models/directory,
models/interface and kernels."""
