"""Sphinx: the pages of this folder as a site (`make docs`)."""

project = "Ingot"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
html_theme = "furo"
html_title = "Ingot"
