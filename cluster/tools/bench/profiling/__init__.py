"""Measures a Slipstream cluster for a `WorkerProfile`: isolated requests, and the router's records of them. It may
import `config`, `config.loading`, `state`, `terminal`, `report`, `sim.hardware`, `bench.client` and `bench.load`."""
