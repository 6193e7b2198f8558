"""What faces clients: the HTTP front of the API, health, metrics and pages, in the router's process or in several front
processes in front of one dispatcher. It imports all floors below."""
