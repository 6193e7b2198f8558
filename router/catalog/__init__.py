"""What is served under a model's name: the files of each version, and what was in them. Imports nothing else of the
router, so that the router, the workers and the driver can all compare files with the version that they belong to."""
