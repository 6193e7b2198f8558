"""The weights of a rank: read from a checkpoint, packed for the native kernels, shared between the workers of a host.
May import models/directory and models/interface."""
