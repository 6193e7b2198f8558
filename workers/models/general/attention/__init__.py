"""The attention of general models over pages: what a model asks for, and what computes it. Imports general/graph,
kernels and models/interface."""
