"""The plan of a program: the placement of values, control flow, kernels in order, weights."""
