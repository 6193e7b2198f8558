"""What an engine asks of a model, and a model of its family: the arrays of a step, the shape of the KV pool, the
tensor-parallel group, the source of weights. May import models/directory."""
