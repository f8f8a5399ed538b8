"""Passes that compute in narrower types, if the results are the same or the caller requests it."""
