"""The worker's side of the messages between router and workers, without I/O, and the Protocols of what it runs on.

Whatever computes (`engine.Engine`) or moves pages (`transfers.PageTransfers`) plugs in here. It imports the router's
messages and the tickets of `kv_transfer`, and no engine.
"""
