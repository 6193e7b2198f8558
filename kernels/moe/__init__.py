"""Mixtures of experts: which experts a row chooses, and what they make of it, in torch. It imports the
elementwise kernels."""
