"""What a general model computes in a step, as a graph of calls: recorded, simplified, written to a file, made a program
of. Imports kernels; nothing here needs transformers, so that a graph from a file starts without it."""
