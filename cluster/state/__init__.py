"""The state of a running cluster: its state file on the driver's machine, and the router's view of the load. It may
import `fleet`, `processes` and `terminal`."""
