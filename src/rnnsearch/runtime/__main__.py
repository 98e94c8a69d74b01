"""`python -m rnnsearch.runtime`: the command `rnnsearch-runtime` where that wheel is not installed."""

from rnnsearch.runtime.command_line import main

main()
