"""Rewrites a client's JSON schema into one that llguidance takes, without any I/O.

Only `guide.py`, which asks llguidance what is wrong with the result, may import anything of the router: `grammar` and
`messages`. It all runs in the process in which guides are tried (`router/guide_trial.py`).
"""
