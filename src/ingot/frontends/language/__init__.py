"""Language models, in whatever file: what they are, their weights, their text; and the graph that stands for one."""

from ingot.frontends.language.file import LanguageFile, chunk_graph, language_graph, open_language

__all__ = ["LanguageFile", "chunk_graph", "language_graph", "open_language"]
