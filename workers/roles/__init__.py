"""Prefill and decode: each follows the attempts of a worker to their end. May import engine/ and transfers/."""
