"""The model families over `kernels.ops`, and the loading of their weights. May import its own folders."""
