"""Classic models of the domain ai.onnx.ml."""
