"""The native CPU library: C++ sources, the build that fits this processor, and its C interface. Imports no other
kernels."""
