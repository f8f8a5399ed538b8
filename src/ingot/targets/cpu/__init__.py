"""Code generation for CPUs: the printer of LLVM IR, the driver, the assembler and the linker."""
