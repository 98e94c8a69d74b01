#!/bin/sh
# Build a wheel, which contains the native libraries of this platform if there is a compiler. It is built from a copy, so
# that the source tree is not changed and no files of earlier builds are included.
#
#   scripts/wheel.sh FOLDER [pip options]
#
# RNNSEARCH_NATIVE=0 builds no libraries; the name of a variant builds only that one.
set -eu
cd "$(dirname "$0")/.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT INT TERM
cp -R pyproject.toml setup.py README.md LICENSE src "$copy"
rm -rf "$copy"/src/*.egg-info
folder=$1 && shift
"${PYTHON:-.venv/bin/python}" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$folder" "$@" "$copy"
ls "$folder"/*.whl
