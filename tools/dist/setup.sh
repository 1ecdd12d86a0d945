#!/usr/bin/env bash
# Installs what `make dist` needs besides tools/setup.sh: Debian packages as root or with sudo, and pinned packages of PyPI and
# crates.io into target/dist-tools. Where that fails, the parts of the release print what they lack.
set -euo pipefail
cd "$(dirname "$0")/../.."
place=$PWD/target/dist-tools

has() { command -v "$1" >/dev/null; }
missing=()
for package in buildah debootstrap lintian; do has "$package" || missing+=("$package"); done
has qemu-aarch64-static || missing+=(qemu-user-static libc6-arm64-cross)
if [ ${#missing[@]} -gt 0 ]; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    echo "setup: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { $sudo apt-get update && $sudo apt-get install --yes --no-install-recommends "${missing[@]}"; } >target/dist-setup.log 2>&1 ||
        echo "setup: apt-get failed; to install: apt-get install ${missing[*]}"
fi

if ! cmp -s tools/dist/requirements.txt "$place/requirements.txt"; then
    echo "setup: installing cargo-zigbuild, zig and cyclonedx-bom"
    python3 -m venv "$place"
    if "$place/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: -r tools/dist/requirements.txt; then
        cp tools/dist/requirements.txt "$place/"
    fi
fi
for tool in cargo-deb@3.8.0 cargo-cyclonedx@0.5.9; do tools/dist/cargo.sh "$tool" || true; done
