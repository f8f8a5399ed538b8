"""Products with a B of 4- or 8-bit levels, which share their packed words."""
