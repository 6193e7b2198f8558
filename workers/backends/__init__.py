"""The programs that execute tensor models, one folder a backend. What backends share stands here: what a backend is,
how its model is checked against the configuration, and how many threads it computes with."""
