"""How a general model is computed fast, and on several ranks: its step as a graph of calls, with native kernels in
place of torch's where they fit. Imports kernels, models/directory and models/interface."""
