"""Chat templates: rendering, and the form in which a template takes contents, tools and calls. It imports `config`
only."""
