"""Code generation for portable C: kernels and programs as C99 text."""
