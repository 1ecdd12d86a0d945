#!/usr/bin/env bash
# Makes a Debian package of each program.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v cargo-deb >/dev/null; then
    echo "NOT BUILT: deb: cargo-deb is missing"
    exit
fi
for arch in x86_64 aarch64; do
    target=$arch-unknown-linux-gnu
    if [ ! -x "target/$target/dist/cuckood" ]; then
        echo "NOT BUILT: deb: there is no program for $arch"
        continue
    fi
    cargo deb --no-build --no-strip --locked --profile dist --target "$target" --output "$DIST/"
done
