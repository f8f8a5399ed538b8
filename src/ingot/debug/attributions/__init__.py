"""Attributions for the eye: over images, beside tokens, as bars."""
