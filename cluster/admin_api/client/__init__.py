"""The admin API as commands see it: a client, and the choice of a cluster on this machine or elsewhere. It may import
`processes`, `state` and `terminal`."""
