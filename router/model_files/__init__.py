"""Which files of a model directory determine what is served, what they say, and copies of them that do not change while
they are read. Workers read them, too. It imports only `process`."""
