"""Ops on images: resizing, sampling at computed places, boxes."""
