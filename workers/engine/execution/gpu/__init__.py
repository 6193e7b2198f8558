"""Steps on a GPU without waiting for the device: recorded decode steps, uploads and sampling. May import
engine/execution, engine/plan, engine/sampling and models/."""
