"""The command line of Triton's server as options of `slipstream serve`: a table of the flags, and the configuration
that they stand for. Of `cluster` it imports nothing."""
