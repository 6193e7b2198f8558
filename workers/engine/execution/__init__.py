"""One rank's part of a step: model, KV pool and sampler. May import models/interface, engine/plan and
engine/sampling."""
