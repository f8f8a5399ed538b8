"""Text of language models: tokenizers, chat templates, grammars, by libraries of `ingot-compiler[language]`."""
