"""Chooses a deployment for a model and the machine it is to run on, for those who give no configuration: facts about
both, a pure function from them to pools and page memory, and the file that says so. May import `config`,
`config.loading`, `repository`, `state`, `terminal` and `triton_flags`."""
