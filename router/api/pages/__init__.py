"""Pages of the router for a browser: a home page, and the description of the API. Both are built on demand from the
routes of the router. It imports `api` and `http`."""
