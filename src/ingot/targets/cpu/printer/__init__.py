"""The printer of LLVM IR text from kernel IR."""
