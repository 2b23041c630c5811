"""From a traced graph to kernels: what to compute together, in which order, with which tiles."""
