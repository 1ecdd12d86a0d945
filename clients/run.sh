#!/usr/bin/env bash
# Generates the clients from openapi/openapi.json, packs them, checks their types, and runs their tests, which start the
# program that is this script's argument. What Python needs goes into target/clients, npm's things lie in clients/typescript.
# Where Python's venv or npm is missing that half is skipped, but in CI.
set -euo pipefail
cd "$(dirname "$0")/.."
CUCKOOD=$(realpath "${1:-target/debug/cuckood}")
export CUCKOOD
place=$PWD/target/clients
mkdir -p "$place"

skipped() {
    echo "clients: $1 is missing: $2 is not tested"
    [ -z "${CI:-}" ]
}

# Does a step again only when what it was done from has changed, or what it made is gone: the copy lies in there.
once() {
    if ! cmp -s "$1" "$2"; then
        "${@:3}"
        cp "$1" "$2"
    fi
}

install_python() {
    python3 -m venv --clear "$place/python"
    "$place/python/bin/pip" install --quiet --disable-pip-version-check -r clients/python/requirements.txt
}

install_typescript() {
    npm --prefix clients/typescript ci --ignore-scripts --silent --no-audit --no-fund
}

# Builds the source distribution, and from that alone what is installed.
python() (
    export PATH=$place/python/bin:$PATH PYTHONDONTWRITEBYTECODE=1
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
    npm run --silent build
    npm run --silent test
    npm pack --silent --ignore-scripts --dry-run
)

if python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    once clients/python/requirements.txt "$place/python/requirements.txt" install_python
    python
else
    skipped "Python 3.11 with venv (apt install python3-venv)" "the Python client"
fi

if node -e 'process.exit(Number(parseInt(process.versions.node) < 20))' 2>/dev/null && command -v npm >/dev/null; then
    once clients/typescript/package-lock.json clients/typescript/node_modules/package-lock.json install_typescript
    typescript
else
    skipped "Node 20 with npm (apt install npm)" "the TypeScript client"
fi
