"""The models of a running cluster: which there are, what changes each of them, and how one is added or removed. It may
import all of `cluster` but `driver`, `commands` and `tools`."""
