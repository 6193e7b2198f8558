"""How the workers of a host divide its memory for KV pages: a pure policy and its ledger. May import protocol/ and
registry/."""
