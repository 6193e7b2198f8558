"""Which sequences compute what in the next step and which pages they own, without clock and device. May import
engine/kv_cache, engine/limits, engine/plan, engine/processors, engine/structured_output and interface/."""
