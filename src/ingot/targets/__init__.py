"""Code generation: printers of kernel IR, assemblers, and the worker processes that run compilers."""
