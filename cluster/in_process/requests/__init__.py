"""Requests of a program and their responses, on their way between its threads and that of the server. It imports the
folders beside it."""
