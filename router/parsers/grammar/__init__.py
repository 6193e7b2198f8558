"""From the description of a format and the tools of a request to the grammar that a worker follows. It imports
`description`, and lower folders of the router."""
