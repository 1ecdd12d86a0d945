#!/usr/bin/env bash
# Writes bills of materials: the packages in the program, and those in the page of the console, which the program contains. The npm client
# has none.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v cargo-cyclonedx >/dev/null || ! command -v npm >/dev/null; then
    echo "NOT BUILT: sbom: cargo-cyclonedx or npm is missing"
    exit
fi
cargo cyclonedx --format json --spec-version 1.5 --describe binaries --no-build-deps --target x86_64-unknown-linux-gnu
# Without this machine's paths.
sed "s#file://$PWD#file:///cuckood#g" cuckood_bin.cdx.json >"$DIST/cuckood-$VERSION.cdx.json"
find . -path ./target -prune -o -name '*.cdx.json' ! -path './target/*' -exec rm {} +
npm sbom --prefix console --package-lock-only --omit dev --sbom-format cyclonedx >"$DIST/cuckood-console-$VERSION.cdx.json"
