"""Passes that decide how values lie in memory: joined with others, or in rows that start at aligned addresses."""
