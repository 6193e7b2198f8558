"""Client connections that outlive the router's process: a process that holds the sockets, and a journal of each answer
in memory that the next router reads. It imports `http`, `process` and `protocol`."""
