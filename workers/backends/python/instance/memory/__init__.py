"""Shared memory: where an instance leaves its outputs, and where its inputs lie. It imports nothing else of ours."""
