"""What is known of integers that say positions, and the rules that follow from it."""
