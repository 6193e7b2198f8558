"""What belongs to the process rather than to a request: the limits of its container, the sockets that it listens at,
the commands of further processes, its cache folder. Imports little."""
