#!/usr/bin/env bash
# A Python for AArch64 with numpy and ml_dtypes in FOLDER, for qemu's user mode: Debian's packages, unpacked, and
# wheels. tests/runtime/test_aarch64_python.py runs it from build/aarch64. It needs apt, dpkg and the package index.
#     tools/aarch64_python.sh build/aarch64 [PYTHON-WITH-PIP]
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=$(command -v "${2:-python3}")
[[ $python == /* ]] || python=$PWD/$python
cd "$folder"
mkdir -p debs/partial state/lists/partial cache/archives/partial
options=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$folder/state"
  -o Dir::State::status=/dev/null -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root -qq)
apt-get "${options[@]}" update
version=$(apt-cache "${options[@]}" depends python3-minimal | sed -n 's/.*Depends: python\(3\.[0-9]*\)-minimal.*/\1/p' | head -n 1)
mapfile -t names < <(apt-cache "${options[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
  --no-replaces --no-enhances "python$version-minimal" "libpython$version-stdlib" libstdc++6 | grep '^[a-z0-9]' | sort -u)
(cd debs && apt-get "${options[@]}" download "${names[@]}" 2>/dev/null || true)
for deb in debs/*.deb; do dpkg -x "$deb" root; done
ln -sf "python$version" root/usr/bin/python3
"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest wheels --implementation cp \
  --python-version "$version" --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 \
  --platform manylinux_2_28_aarch64 numpy ml_dtypes
for wheel in wheels/*.whl; do "$python" -m zipfile -e "$wheel" site; done
rm -rf debs state cache wheels
