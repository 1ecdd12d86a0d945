#!/usr/bin/env bash
# Generates the clients from openapi/openapi.json, packs them, checks their types, and runs their tests, which start the
# program that is this script's argument. Wants target/tools (tools/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
CUCKOOD=$(realpath "${1:-target/debug/cuckood}")
export CUCKOOD PATH=$PWD/target/tools/bin:$PATH
place=$PWD/target/clients
mkdir -p "$place"

# Builds the source distribution, and from that alone what is installed.
python() (
    export PYTHONDONTWRITEBYTECODE=1
    cd clients/python
    rm -rf "$place/dist"
    hatchling build --target sdist --directory "$place/dist"
    pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall "$place"/dist/*.tar.gz
    ruff check --quiet --no-cache
    ruff format --quiet --no-cache --check
    mypy --cache-dir "$place/mypy"
    pytest --quiet -p no:cacheprovider
)

typescript() (
    cd clients/typescript
    if ! cmp -s package-lock.json node_modules/package-lock.json; then
        ../../tools/npm-ci.sh
        cp package-lock.json node_modules/
    fi
    npm run --silent build
    npm run --silent test
    npm pack --silent --ignore-scripts --dry-run
)

python
typescript
