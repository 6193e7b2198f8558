"""What belongs to the process rather than to a request: the limits of its container and the sockets that it listens at.
Imports little."""
