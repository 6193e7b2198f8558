"""Pages of the router for a browser: a home page, and the description of the API. Built on demand from the routes of
the router; imports HTTP, and nothing of the API itself."""
