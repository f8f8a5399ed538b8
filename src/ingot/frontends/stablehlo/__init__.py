"""StableHLO programs as graphs: `import_stablehlo` reads text and, where jaxlib is installed, portable bytecode."""

from ingot.frontends.stablehlo.model import ImportedModel, import_stablehlo

__all__ = ["ImportedModel", "import_stablehlo"]
