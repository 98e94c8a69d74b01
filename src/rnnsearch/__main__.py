"""`python -m rnnsearch`."""

from rnnsearch.cli import main

main()
