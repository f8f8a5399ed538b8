"""Training: a model, a loss and an optimizer become one program that makes a step (`ingot.train`)."""
