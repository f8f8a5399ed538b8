"""Placement of a model on a GPU and the host's CPU when a limit on device memory leaves weights on the host.

    gather from a table of 8 GB -> layers of 4 GB, device_memory of 6 GB
        ->   the gather on the CPU | copy of its rows | the layers on the GPU, where they fit

A node that reads a weight left on the host runs either on the GPU, with the weight copied in each call, or on the CPU,
with its operands and results copied. Both costs are measured here: a copy from the host to this GPU, and each op alone
on this CPU.
"""
