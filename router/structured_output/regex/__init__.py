"""Regular expressions of JSON schemas: parsed, rewritten for llguidance, intersected and negated as automata. It
imports nothing else."""
