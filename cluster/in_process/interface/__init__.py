"""What a program names when it uses the server within it: errors, kinds, options and metrics. It imports `router`
only for errors and metrics as data."""
