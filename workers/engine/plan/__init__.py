"""What one step computes, in plain values, and the interface of what runs it. May import engine/structured_output and
models/interface."""
