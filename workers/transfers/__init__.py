"""The transfers of a group's KV pages: their tickets, one outcome for all ranks, and pages in device memory. May import
engine/execution/gpu and interface/."""
