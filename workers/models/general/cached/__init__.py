"""Models that compute attention, or recurrent states, in a way of their own, with transformers' `Cache` over our pages.
Imports transformers, and of our own models/directory and models/interface."""
