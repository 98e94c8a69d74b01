"""`python -m rnnsearch.runtime`: the command `rnnsearch-runtime` without its wheel."""

from rnnsearch.runtime.command_line import main

main()
