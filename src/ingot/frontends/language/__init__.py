"""Language models from any file: their architecture, weights, and text settings; and their graphs."""

from ingot.frontends.language.file import LanguageFile, chunk_graph, language_graph, open_language

__all__ = ["LanguageFile", "chunk_graph", "language_graph", "open_language"]
