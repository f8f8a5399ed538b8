"""Passes that compute in narrower types, where the results say nothing else or the caller asks for it."""
