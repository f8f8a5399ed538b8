"""`python -m ingot`: the `ingot` command."""

from ingot.cli import main

main()
