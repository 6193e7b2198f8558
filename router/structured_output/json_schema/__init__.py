"""Rewrites a client's JSON schema into one that llguidance takes, without any I/O.

It runs in the process in which grammars are tried, where `router/structured_output/json_grammar.py` calls it and asks
llguidance what is wrong with the result. It imports only `regex`.
"""
