"""What an engine and a model say to each other: the arrays of a step, the shape of the KV pool, the tensor-parallel
group. May import models/directory."""
