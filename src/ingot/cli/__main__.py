"""`python -m ingot.cli`: the command without its script."""

from ingot.cli import main

main()
