"""Patches that keep a program whole, or its sizes open, while torch traces it."""
