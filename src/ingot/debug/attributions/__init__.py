"""Visualizations of attributions: over images, beside tokens, as bars."""
