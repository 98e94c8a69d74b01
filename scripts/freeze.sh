#!/bin/sh
# Write the exact versions installed in .venv, which the tests were run with, to constraints.txt.
set -eu
cd "$(dirname "$0")/.."

{
    echo "# The exact versions that the tests were run with (make constraints)."
    echo "# torch: the version without a suffix, so that any build matches (CPU or CUDA)."
    .venv/bin/python -m pip --disable-pip-version-check freeze --exclude-editable --exclude rnnsearch |
        sed -E 's/^(torch==[^+]+)\+.*$/\1/' |
        LC_ALL=C sort -f
} >constraints.new
mv constraints.new constraints.txt
