"""Control flow, and the sequences that it works on."""
