"""The KV pages of one pool: their states, their owners, and the prefix cache in those without an owner. May import
interface/."""
