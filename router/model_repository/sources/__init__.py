"""Where the models of a repository come from, folders or addresses of object stores and hubs, and when their files
changed. It may import `model_files`."""
