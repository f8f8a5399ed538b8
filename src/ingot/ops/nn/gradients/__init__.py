"""Ops of backward passes: gradients with special algorithms, custom gradients, and values without gradients."""
