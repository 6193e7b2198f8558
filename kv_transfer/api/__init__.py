"""What a transfer is: tickets, settings, events, the layout of pages, and the protocols that a transport implements.
Imports nothing else of the project."""
