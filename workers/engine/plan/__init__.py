"""What one step computes, in plain values, and the interface of what runs it. May import engine/structured_output,
engine/processors and models/interface."""
