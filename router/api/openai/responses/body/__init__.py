"""The body of a request for a response, and what becomes of it: a chat."""
