#!/usr/bin/env bash
# Build a root file system with Python, the runtime and one model, for a container that needs no network:
#
#     scripts/image.sh en-de.rnn image.tar
#     docker import -c 'ENTRYPOINT ["rnnsearch-runtime"]' image.tar en-de       # or podman import
#     docker run --rm --network none -i en-de translate /model.rnn < text.en
#     docker run --rm -p 5000:5000 en-de serve /model.rnn --host 0.0.0.0
#
# It runs on Debian or Ubuntu, uses their packages, and prints the size of each part. The third argument, arm64 or amd64,
# selects another architecture than that of this machine; this requires, once:
# dpkg --add-architecture arm64 && apt-get update
set -euo pipefail
if [ $# -ne 2 ] && [ $# -ne 3 ]; then
    echo "usage: scripts/image.sh MODEL.rnn IMAGE.tar [arm64|amd64]" >&2
    exit 2
fi
model=$(realpath "$1") image=$(realpath -m "$2") architecture=${3:-$(dpkg --print-architecture)}
case $architecture in
    arm64) machine=aarch64 ;;
    amd64) machine=x86_64 ;;
    *) echo "scripts/image.sh: the architecture must be arm64 or amd64; got $architecture" >&2 && exit 2 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
if [ "$architecture" != "$(dpkg --print-architecture)" ]; then
    # pip sets a PYTHONPATH for builds that does not contain Zig; remove it.
    export _PYTHON_HOST_PLATFORM=linux-$machine CXX="env -u PYTHONPATH $python -m ziglang c++"
    "$python" -c "import ziglang" || { echo "to build for $architecture: pip install ziglang" >&2 && exit 1; }
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root" "$work/debs" "$root/tmp" "$root/usr/lib/runtime"

# Debian's Python, without the modules that the runtime does not need.
version=$(apt-cache depends python3-minimal | sed -n 's/.*Depends: \(python3\.[0-9]*\)-minimal.*/\1/p' | head -1)
python_packages=("$version-minimal" "lib$version-minimal" "lib$version-stdlib")
system_packages=(libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libcrypt1)
(cd "$work/debs" && printf "%s:$architecture\n" "${python_packages[@]}" "${system_packages[@]}" | xargs apt-get download -qq)
for package in "$work"/debs/*.deb; do
    dpkg -x "$package" "$root"
done
lib=$root/usr/lib/$version
rm -rf "$lib"/{idlelib,lib2to3,distutils,ensurepip,pydoc_data,unittest,sqlite3,tkinter,curses,venv,turtledemo,test}
rm -rf "$root"/usr/share/{doc,man,lintian,bug,binfmts,gcc,gdb,pixmaps,applications} "$root"/usr/lib/*/gconv

# The runtime, NumPy and tokenizers for that Python.
"$python" scripts/runtime_wheel.py "$work/wheels" >/dev/null
unset _PYTHON_HOST_PLATFORM CXX
platforms=()
for platform in linux manylinux_2_17 manylinux_2_28 manylinux_2_27 manylinux2014; do
    platforms+=(--platform "${platform}_$machine")
done
"$python" -m pip --disable-pip-version-check install --quiet --no-deps --no-compile --only-binary=:all: \
    --python-version "${version#python}" "${platforms[@]}" --target "$root/usr/lib/runtime" "$work"/wheels/*.whl numpy tokenizers
packages=$root/usr/lib/runtime
rm -rf "$packages"/bin "$packages"/numpy/{f2py,_pyinstaller,doc,distutils} "$packages"/numpy/*/include
find "$packages" -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +
find "$packages"/{numpy,tokenizers} \( -name '*.pyi' -o -name '*.a' -o -name '*.c' -o -name '*.h' -o -name '*.cpp' \) -delete
tool=$(command -v "$machine-linux-gnu-strip" || true)  # saves a few MB if binutils are installed
[ -z "$tool" ] || "$tool" --strip-unneeded "$packages"/numpy/*/*.so

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
    "total $(megabytes "$root") MB: $image"
