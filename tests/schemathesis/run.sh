#!/usr/bin/env bash
# Schemathesis against a running service and its own document: once without keys, once with them.
# Needs Python 3.10 or later; what else it needs goes into target/schemathesis. Takes the program to test as its argument;
# options for Schemathesis may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=4.32.5
program=$(realpath "${1:-target/debug/cuckood}")
shift || true
place=target/schemathesis
if [ "$("$place/bin/st" --version 2>/dev/null)" != "st, version $version" ]; then
    python3 -m venv --clear "$place"
    "$place/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$version"
fi
config=$PWD/tests/schemathesis/schemathesis.toml
st() {
    # In the temporary folder: it creates files.
    (cd "$data" && "$OLDPWD/$place/bin/st" --no-color --config-file "$config" run "$url/openapi.json" "$@")
}

data=$(mktemp -d)
. tests/service.sh
trap '[ -z "$service" ] || kill "$service" 2>/dev/null; rm -rf "$data"' EXIT

echo "== without keys"
serve without-keys
st "$@"
stop

echo "== with keys"
key=schemathesis
serve_with_key with-keys
st --header "Authorization: Bearer $key" "$@"
stop
