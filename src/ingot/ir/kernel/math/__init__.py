"""Vector math: what a `Call` of kernel IR is made of on machines without such functions; f32 and f64, any lanes, no
branches, no calls.

Each function is a range reduction and a polynomial or rational function; the coefficients come from
tools/vecmath_fit.py. Error bounds are measured by tests/ir/kernel/math/test_math.py and listed in
docs/reference/ops.md. NaN,
infinities, zeros with their sign and subnormals are handled as IEEE 754 and C have them, unless stated.

The expressions are graphs: subexpressions are shared objects, to be evaluated once each.

Sources: argument reduction after Cody and Waite, "Software Manual for the Elementary Functions" (1980); the shift trick
that turns rounding into an addition after Muller et al., "Handbook of Floating-Point Arithmetic" (2018), section 10.
"""
