"""The plan of a program: where values lie, control flow, kernels in order, weights."""
