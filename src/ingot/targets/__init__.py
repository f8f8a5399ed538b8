"""Printers of kernel IR."""
