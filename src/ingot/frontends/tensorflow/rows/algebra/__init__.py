"""Complex numbers, products and factorizations."""
