#!/bin/sh
# Create or update .venv with the exact versions of constraints.txt.
#
#   scripts/environment.sh ".[plots]"  to run rnnsearch
#   scripts/environment.sh ".[dev]"    to run and test it
#
# PYTHON is the interpreter, by default the first one on the path that is recent enough. pip's own settings
# (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, pip.conf ...) apply.
set -eu
cd "$(dirname "$0")/.."

is_recent() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Missing, incomplete, or created by a Python that no longer exists.
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if is_recent "$python"; then interpreter=$python && break; fi
    done
    if [ -z "${interpreter:-}" ]; then
        echo "Python must be 3.11 or newer; found none (tried: ${PYTHON:-python3, python3.11 to 3.13, python})." >&2
        exit 1
    fi
    echo "== environment: .venv from $("$interpreter" -c 'import sys; print(sys.executable, sys.version.split()[0])')"
    # On some systems Python has pip, but not ensurepip to install it into a new environment.
    "$interpreter" -m venv --clear .venv >/dev/null 2>&1 || "$interpreter" -m venv --clear --without-pip .venv
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        "$interpreter" -m pip --disable-pip-version-check --python .venv/bin/python install --quiet pip
    fi
fi

echo "== environment: installing $1 into .venv (constraints.txt)"
.venv/bin/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt -e "$1"
# On all cores, where pip would use one. Some packages contain files for other versions of Python, which fail.
.venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true

# Compiled now rather than at first use. rnnsearch works without it.
echo "== environment: $(.venv/bin/python -m rnnsearch.ops.native.library || echo "no native code")"
