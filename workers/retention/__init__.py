"""Which cached pages a worker gives up first. Imports the router's messages alone."""
