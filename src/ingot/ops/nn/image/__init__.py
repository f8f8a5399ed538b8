"""Ops on images: resizing, sampling at computed coordinates, boxes."""
