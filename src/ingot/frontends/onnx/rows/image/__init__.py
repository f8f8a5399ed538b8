"""Operators on images: resizing, and sampling at computed positions."""
