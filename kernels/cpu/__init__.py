"""The native CPU library: C++ sources, the build that fits this processor, and `Ops` that record programs for it. May
import `kernels.ops`."""
