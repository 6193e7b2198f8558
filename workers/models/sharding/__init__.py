"""Which part of which stored tensor a rank of a tensor-parallel group holds, and whether the files have all of them,
without torch. Imports models/directory and the router's model_files."""
