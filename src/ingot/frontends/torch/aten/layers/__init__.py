"""Layers: activations, attention, convolutions, norms, recurrent layers, resizing, quantized layers."""
