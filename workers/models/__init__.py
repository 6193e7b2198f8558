"""The model families over `kernels.ops`, each a file, and the two kinds of models that run them: op by op, or natively
as recorded programs. May import its own folders."""
