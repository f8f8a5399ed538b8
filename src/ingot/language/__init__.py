"""Language models: a record of switches and weights become graphs of chunks, steps and loops."""
