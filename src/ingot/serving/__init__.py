"""Serving of models: the application for one machine, and adapters for Triton and Ray Serve. The servers are
libraries."""
