"""`slipstream sim-batching`: the batcher of one tensor model under load, in virtual time. It may import the router's
batching and model repository, `terminal` and `report`."""
