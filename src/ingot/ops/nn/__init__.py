"""MODEL ops, which frontends build. Each lowers to CORE primitives."""
