"""Grammars: which tokens may come next, so that an output matches a schema. Imports no other folder of workers/."""
