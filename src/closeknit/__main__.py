"""`python -m closeknit` is the command line."""

from closeknit.cli import main

main()
