"""Proofs of the compiler's rules by z3; see docs/inside/proofs.md."""
