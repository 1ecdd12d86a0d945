#!/usr/bin/env bash
# Generates clients from openapi/openapi.json with pinned generators. The Python one does a day's work against the real
# program, which is this script's argument; a program over the TypeScript one has to type-check.
# What it needs goes into target/clients. Where Python's venv or npm is missing that half is skipped, but in CI.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "${1:-target/debug/cuckood}")
place=$PWD/target/clients
mkdir -p "$place"
data=$(mktemp -d)
. tests/service.sh
trap '[ -z "$service" ] || kill "$service" 2>/dev/null; rm -rf "$data"' EXIT

skipped() {
    echo "clients: $1 is missing: $2 is not tested"
    [ -z "${CI:-}" ]
}

# Does a step again only when what it was done from has changed.
once() {
    local stamp=$place/$1.stamp
    if ! cmp -s "$2" "$stamp"; then
        "${@:3}"
        cp "$2" "$stamp"
    fi
}

install_python() {
    python3 -m venv --clear "$place/python"
    "$place/python/bin/pip" install --quiet --disable-pip-version-check -r tests/clients/python/requirements.txt
}

install_typescript() {
    mkdir -p "$place/typescript"
    cp tests/clients/typescript/package*.json "$place/typescript/"
    npm --prefix "$place/typescript" ci --silent --no-audit --no-fund
}

if python3 -c 'import ensurepip, venv' 2>/dev/null; then
    once python tests/clients/python/requirements.txt install_python
    # Its formatter lies beside it.
    PATH=$place/python/bin:$PATH openapi-python-client generate --path openapi/openapi.json --meta none \
        --config openapi/python-client.yaml --output-path "$data/cuckood_client" --fail-on-warning
    key=clients
    serve_with_key python
    PYTHONPATH=$data "$place/python/bin/python" tests/clients/python/use.py "$url" "$key"
    stop
    echo "clients: Python does its work"
else
    skipped "Python's venv (apt install python3-venv)" "the Python client"
fi

if command -v npm >/dev/null; then
    once typescript tests/clients/typescript/package-lock.json install_typescript
    cp tests/clients/typescript/use.ts tests/clients/typescript/tsconfig.json "$place/typescript/"
    "$place/typescript/node_modules/.bin/openapi-typescript" openapi/openapi.json --default-non-nullable=false \
        --output "$place/typescript/cuckood.d.ts"
    "$place/typescript/node_modules/.bin/tsc" --project "$place/typescript"
    echo "clients: TypeScript type-checks"
else
    skipped "npm (apt install npm)" "the TypeScript client"
fi
