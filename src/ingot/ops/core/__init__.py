"""The CORE primitives, with StableHLO's names and semantics."""
