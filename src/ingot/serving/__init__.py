"""Models behind a URL: the application for one machine, and what Triton and Ray Serve need. Adapters, no server."""
