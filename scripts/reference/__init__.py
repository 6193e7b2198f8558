"""Pages of the documentation that are written from the code that they describe. It imports that code; a test compares
the pages with what it writes."""
