"""For how long workers keep the KV of requests that another one will probably go on from. Imports the prefix index, the
registry and the requests."""
