"""Tensors as models see them: arrays, memory, DLPack; and the errors of the API. It imports nothing else of ours."""
