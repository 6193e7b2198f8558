"""Reports of all tools: tables and plots, for the terminal, as JSON and as one HTML page. It imports nothing else of
`cluster`."""
