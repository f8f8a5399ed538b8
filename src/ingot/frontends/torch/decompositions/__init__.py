"""Decompositions that torch lacks, as torch code."""
