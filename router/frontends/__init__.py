"""Several front processes in front of one dispatcher, and the link between them and the router's process. It imports
all floors below."""
