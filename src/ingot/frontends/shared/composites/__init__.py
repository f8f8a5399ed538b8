"""Graphs of several ops for one op of a format, where several formats have it."""
