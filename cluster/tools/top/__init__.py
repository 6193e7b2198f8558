"""`slipstream top`: the live picture of a cluster in a terminal. May import what `slipstream status` does."""
