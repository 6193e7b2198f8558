"""What simulated workers run on: virtual time, links between hosts, and profiles of how fast a worker is. It may import
the workers' step profile."""
