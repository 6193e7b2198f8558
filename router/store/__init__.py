"""What the APIs keep between requests: objects in a SQLite database and files beside it, shared by all processes of a
host and by their successors. It knows nothing of what the objects are, and imports only `config`."""
