"""Facts about integers that are positions, and the rules that follow from them."""
