"""What the GPU check measures of a kernel, and random pages to measure with. May import kernels/pages."""
