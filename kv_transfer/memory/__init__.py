"""A rank's pages in host memory: pools that other processes may map, and copies with checksums. Imports
`kv_transfer.api` only."""
