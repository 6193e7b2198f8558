"""The models that a host has downloaded: complete versions that all its processes share, bounded in size. It imports
`sources`, `model_files` and `process`."""
