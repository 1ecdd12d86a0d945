#!/usr/bin/env bash
# Makes a Debian package of each program.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v cargo-deb >/dev/null; then
    echo "NOT BUILT: deb: cargo-deb is missing"
    exit
fi
for program in target/*-unknown-linux-gnu/dist/cuckood; do
    target=$(basename "${program%/dist/cuckood}")
    cargo deb --no-build --no-strip --locked --profile dist --target "$target" --output "$DIST/"
done
