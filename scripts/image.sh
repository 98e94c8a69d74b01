#!/usr/bin/env bash
# A root file system of Python, the runtime and one model, for a container that needs nothing else and no network:
#
#     scripts/image.sh en-de.rnn image.tar
#     docker import -c 'ENTRYPOINT ["rnnsearch-runtime"]' image.tar en-de       # podman import takes the same
#     docker run --rm --network none -i en-de translate /model.rnn < text.en
#     docker run --rm -p 5000:5000 en-de serve /model.rnn --host 0.0.0.0
#
# On Debian or Ubuntu, whose packages it takes; it says what each part weighs.
set -euo pipefail
if [ $# -ne 2 ]; then
    echo "usage: scripts/image.sh MODEL.rnn IMAGE.tar" >&2
    exit 2
fi
model=$(realpath "$1") image=$(realpath -m "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root" "$work/debs" "$root/tmp" "$root/usr/lib/runtime"

# Debian's Python, without what no translation needs.
version=$(apt-cache depends python3-minimal | sed -n 's/.*Depends: \(python3\.[0-9]*\)-minimal.*/\1/p' | head -1)
own=("$version-minimal" "lib$version-minimal" "lib$version-stdlib")
system=(libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libcrypt1)
(cd "$work/debs" && apt-get download -qq "${own[@]}" "${system[@]}")
for package in "$work"/debs/*.deb; do
    dpkg -x "$package" "$root"
done
lib=$root/usr/lib/$version
rm -rf "$lib"/{idlelib,lib2to3,distutils,ensurepip,pydoc_data,unittest,sqlite3,tkinter,curses,venv,turtledemo,test}
rm -rf "$root"/usr/share/{doc,man,lintian,bug,binfmts,gcc,gdb,pixmaps,applications} "$root"/usr/lib/*/gconv

# The runtime, NumPy and tokenizers for that Python.
"$python" scripts/runtime_wheel.py "$work/wheels" >/dev/null
"$python" -m pip --disable-pip-version-check install --quiet --no-deps --no-compile --only-binary=:all: \
    --python-version "${version#python}" --target "$root/usr/lib/runtime" "$work"/wheels/*.whl numpy tokenizers
packages=$root/usr/lib/runtime
rm -rf "$packages"/bin "$packages"/numpy/{f2py,_pyinstaller,doc,distutils} "$packages"/numpy/*/include
find "$packages" -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +
find "$packages"/{numpy,tokenizers} \( -name '*.pyi' -o -name '*.a' -o -name '*.c' -o -name '*.h' -o -name '*.cpp' \) -delete
strip --strip-unneeded "$packages"/numpy/*/*.so 2>/dev/null || true  # a few MB, where binutils are there

cp "$model" "$root/model.rnn"
cat >"$root/usr/bin/rnnsearch-runtime" <<END
#!/usr/bin/$version
import sys
sys.path.insert(0, "/usr/lib/runtime")
from rnnsearch_runtime.runtime.command_line import main
main()
END
chmod +x "$root/usr/bin/rnnsearch-runtime"
[ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
tar -C "$root" --owner=0 --group=0 --numeric-owner --sort=name -cf "$image" .

megabytes() { du -sm --apparent-size "$@" | awk '{ total += $1 } END { print total }'; }
echo "NumPy $(megabytes "$packages"/numpy*) MB, tokenizers $(megabytes "$packages"/tokenizers*) MB," \
    "the runtime $(megabytes "$packages"/rnnsearch*) MB, the model $(megabytes "$root/model.rnn") MB;" \
    "all $(megabytes "$root") MB: $image"
