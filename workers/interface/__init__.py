"""The Protocols of what a worker runs on: an engine, and something that moves pages. Imports the router's messages and
the tickets of `kv_transfer` alone."""
