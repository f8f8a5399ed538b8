"""Search for rewrites of a model's own subgraphs: `ingot tune --rewrites`."""
