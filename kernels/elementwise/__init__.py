"""Norms, rotary embedding and activations: the torch reference. Imports nothing of the project."""
