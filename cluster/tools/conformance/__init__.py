"""Whether a worker that somebody has written keeps the protocol (docs/protocol): the router's end of a connection, and
checks over it. It imports the protocol alone, and no router."""
