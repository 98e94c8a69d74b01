#!/bin/sh
# Write constraints.txt: the exact versions in .venv, the set that the tests were run with.
set -eu
cd "$(dirname "$0")/.."

{
    echo "# The exact versions that the tests were run with (make constraints)."
    echo "# torch: the plain version, for which any build will do (CPU or CUDA)."
    .venv/bin/python -m pip --disable-pip-version-check freeze --exclude-editable --exclude rnnsearch |
        sed -E 's/^(torch==[^+]+)\+.*$/\1/' |
        LC_ALL=C sort -f
} >constraints.new
mv constraints.new constraints.txt
