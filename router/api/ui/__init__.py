"""The page for people at `/ui`: its files, the live state of the cluster as events, and calls that are forwarded to the
admin API. It imports `status`, `requests` and the `admin` pages; what it serves is built from `router/ui`."""
