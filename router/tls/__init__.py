"""TLS of all ports and of their clients: PEM files, their renewal, and the settings of the link to workers and of the
admin API. It imports no other folder of the router."""
