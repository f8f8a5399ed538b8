"""Looking into compiled models: compare with references, find what broke, measure, explain. The CLI presents it."""
