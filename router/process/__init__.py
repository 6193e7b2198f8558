"""The operating system's side of a process: the limits of its container, the sockets that it listens at, commands of
further processes, its cache folder. It imports no other folder of the router."""
