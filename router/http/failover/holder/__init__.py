"""Holds a router's sockets in another process, the cluster's guardian, so that they outlive the router. It imports
only `process`."""
