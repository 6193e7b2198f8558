"""Ensembles: models whose requests are requests to other models. What a request needs of the graph, the run of one
request, and the version that serves them. It imports `infer` and what lies below it."""
