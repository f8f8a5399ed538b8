"""Kernel IR as LLVM IR text."""
