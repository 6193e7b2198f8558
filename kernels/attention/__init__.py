"""Causal attention over paged keys and values: the torch reference and its plan. May import kernels/pages."""
