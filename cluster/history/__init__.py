"""The history of a cluster: every change, with who, when and why, in a file that outlives the driver. It may import
`fleet` and `state`."""
