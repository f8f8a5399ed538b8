"""Vector math: exp, log, tanh and the like as kernel expressions."""
