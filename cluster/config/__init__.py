"""The settings of a deployment as frozen dataclasses, the YAML file that they come from, and the differences between
two of them. It may import the settings of `router`, `workers` and `kv_transfer`."""
