"""What the GPUs of this machine and a process take. It imports no other folder of the router, and the libraries for it
only when they are asked for: they need not be installed."""
