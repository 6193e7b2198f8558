"""Tensors of a program that has the server within it: numpy arrays, lists and DLPack in, numpy and DLPack out. It
imports the errors and kinds of `in_process`, and DLPack from the Python backend."""
