"""What belongs to the process rather than to a request: the sockets that it listens at. Imports little."""
