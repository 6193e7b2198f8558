"""Decides how many workers of each role a cluster needs: a pure policy, and the loop that runs it in the driver. It may
import `config` and `fleet`."""
