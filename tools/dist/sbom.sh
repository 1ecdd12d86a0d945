#!/usr/bin/env bash
# Writes bills of materials: the packages in the program, those in the page of the console, which the program contains, and those that
# the Python client needs. The npm client needs none.
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

wheel=$(compgen -G "$DIST/cuckood_client-*.whl" || true)
if [ -z "$wheel" ] || ! command -v cyclonedx-py >/dev/null; then
    echo "NOT BUILT: sbom of the Python client: the wheel or cyclonedx-py is missing"
    exit
fi
# The versions that its tests use.
python=target/package/sbom-python
rm -rf "$python"
python3 -m venv --without-pip "$python"
target/dist-tools/bin/pip --python "$python/bin/python" install --quiet --disable-pip-version-check --constraint clients/python/requirements.txt "$wheel"
cyclonedx-py environment --pyproject clients/python/pyproject.toml --mc-type library --spec-version 1.5 --output-reproducible "$python/bin/python" \
    >"$DIST/cuckood-client-python-$VERSION.cdx.json"
