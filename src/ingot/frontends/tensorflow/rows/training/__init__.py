"""What a training step has beside a model: gradients of ops, optimizers, random numbers."""
