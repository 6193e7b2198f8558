"""The Ray that a cluster runs on: starting one of its own, connecting to one, and reserving bundles of it. It may
import `config` and `processes`."""
