"""Frames, the connection that carries them, and tensors as parts of them. It imports `memory` and `model_api`."""
