#!/bin/sh
# Make .venv, or bring it up to date, with the exact versions of constraints.txt.
#
#   scripts/environment.sh "."         what is needed to run rnnsearch
#   scripts/environment.sh ".[dev]"    and to test it
#
# PYTHON names the interpreter; without it, the first on the path that is recent enough. pip's own settings
# (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, pip.conf ...) are honoured.
set -eu
cd "$(dirname "$0")/.."

recent() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# None yet, half made, or of a Python that is gone.
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if recent "$python"; then found=$python && break; fi
    done
    if [ -z "${found:-}" ]; then
        echo "Python must be 3.11 or newer; found none (tried: ${PYTHON:-python3, python3.11 to 3.13, python})." >&2
        exit 1
    fi
    echo "== environment: .venv from $("$found" -c 'import sys; print(sys.executable, sys.version.split()[0])')"
    # Some systems' Python comes with pip but without the means to copy it into a new environment.
    "$found" -m venv --clear .venv >/dev/null 2>&1 || "$found" -m venv --clear --without-pip .venv
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        "$found" -m pip --disable-pip-version-check --python .venv/bin/python install --quiet pip
    fi
fi

echo "== environment: installing $1 into .venv (constraints.txt)"
.venv/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt -e "$1"
