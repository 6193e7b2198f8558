"""Readers of the parts of a call, as generators: each reads as if the whole text were there, and yields where it has to
wait for more. It imports `description`."""
