"""The HTTP handler of a process that faces clients: who is asking, which API serves the path, and what is counted and
traced. It imports all folders of `router` but `frontends`."""
