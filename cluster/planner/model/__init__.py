"""A queueing model of prefill and decode workers, its corrections from what is measured, and the demand that it is
asked about. Pure; it may import the router's signals."""
