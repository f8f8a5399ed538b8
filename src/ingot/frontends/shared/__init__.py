"""Parts that several frontends share."""
