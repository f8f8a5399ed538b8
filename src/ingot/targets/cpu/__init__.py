"""CPU target: LLVM IR, the driver, the assembler and the linker."""
