"""The parts of a training step other than the model: gradients of ops, optimizers, random numbers."""
