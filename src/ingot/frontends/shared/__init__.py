"""What several frontends need."""
