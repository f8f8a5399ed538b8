"""The parts of a training step beside the model: gradients of ops, optimizers, random numbers."""
