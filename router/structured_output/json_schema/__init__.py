"""Rewrites a client's JSON schema into one that llguidance takes, without any I/O.

It imports nothing of the router. It runs in the process in which guides are tried, where
`router/structured_output/json_grammar.py` calls it and asks llguidance what is wrong with the result.
"""
