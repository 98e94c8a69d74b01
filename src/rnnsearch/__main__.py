"""`python -m rnnsearch`.

Runs `cli.main`, like the command `rnnsearch`; used where the command is not installed, and by torchrun.
"""

from rnnsearch.cli import main

main()
