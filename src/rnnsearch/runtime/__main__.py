"""`python -m rnnsearch.runtime`: the command `rnnsearch-runtime` without its wheel.

It calls `command_line.main`, which the wheel installs as a command; the tests are in
`tests/runtime/test_command_line.py`.
"""

from rnnsearch.runtime.command_line import main

main()
