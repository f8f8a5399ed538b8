"""Shared by the whole package: errors, environment flags, native code as plain data, files, the disk cache."""
