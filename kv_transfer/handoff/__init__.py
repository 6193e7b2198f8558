"""Both ends of a hand-off: the list of messages that follows from a ticket, the state machines, and what carries out
their actions over any transport. Imports `kv_transfer.api` only."""
