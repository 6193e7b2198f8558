"""Parts of the command line that no other part of the cluster needs. It may import all of `cluster`
but `tools`."""
