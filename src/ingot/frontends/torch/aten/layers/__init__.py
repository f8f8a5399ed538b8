"""Layers: activations, attention, convolutions, norms, recurrent ones, resizing, quantized ones."""
