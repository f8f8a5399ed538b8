"""Programs of fixed sizes as functions of C: their plan, native libraries, and examples for microcontrollers."""
