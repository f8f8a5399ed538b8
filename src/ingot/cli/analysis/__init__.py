"""Commands that say why a model answers as it does."""
