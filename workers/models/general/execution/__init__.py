"""How a general model is computed fast, and on several ranks: native kernels in its graph where they fit, and the plan
by which it is dealt out. Imports general/graph, models/directory and models/interface."""
