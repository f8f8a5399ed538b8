"""Ingot beside other engines, each in a process of its own, in short bursts that take turns."""
