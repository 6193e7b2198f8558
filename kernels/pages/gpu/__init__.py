"""One layer of a pool as Triton kernels address it, and the copying of pages on a GPU. Imported on request. May import
kernels/pages and benchmark."""
