#!/usr/bin/env bash
# Installs a program of crates.io into target/dist-tools, once: tools/dist/cargo.sh NAME@VERSION.
set -euo pipefail
cd "$(dirname "$0")/../.."
place=$PWD/target/dist-tools
# Cargo notes there which versions it installed.
if ! grep --quiet --fixed-strings "\"${1%@*} ${1#*@} " "$place/.crates.toml" 2>/dev/null; then
    echo "setup: building $1"
    cargo install --quiet --locked --root "$place" "$1"
fi
