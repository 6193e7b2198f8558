"""How much an engine can hold: its limits, the memory for KV pages, and the errors that say what does not fit. No
torch. May import workers/config and models/directory."""
