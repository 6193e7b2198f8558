"""Runs levels of load and computes their metrics. It may import `bench.client`."""
