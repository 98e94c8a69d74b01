#!/bin/sh
# Make a wheel, with the native libraries of this platform inside where there is a compiler. It is built from a copy: the
# source tree stays as it is, and nothing of an earlier build gets in.
#
#   scripts/wheel.sh FOLDER [more of pip's options]
#
# RNNSEARCH_NATIVE=0: without libraries; or a variant's name: with that alone.
set -eu
cd "$(dirname "$0")/.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT INT TERM
cp -R pyproject.toml setup.py README.md LICENSE src "$copy"
rm -rf "$copy"/src/*.egg-info
folder=$1 && shift
"${PYTHON:-.venv/bin/python}" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$folder" "$@" "$copy"
ls "$folder"/*.whl
