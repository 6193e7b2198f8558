"""What a general model is, found out by a process of its own and kept in the user's cache directory, so that neither
the cluster nor a worker imports transformers for it. Imports models/directory, and process and model_files of the
router."""
