"""The KV pages of one pool: their states, their owners, and the prefix cache in those without an owner. Imports no
other folder of workers/."""
