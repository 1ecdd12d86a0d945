#!/usr/bin/env bash
# Runs the tests of CF.* commands that client libraries publish in their packages against the program that is this script's argument.
# Only redis-py's source package on PyPI has tests; npm's packages have none. Wants target/tools (tools/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "${1:-target/debug/cuckood}")
version=$(sed -n 's/^redis==//p' tools/requirements.txt)
place=$PWD/target/redis-suite
export PATH=$PWD/target/tools/bin:$PATH
mkdir -p "$place"
data=$(mktemp -d)
. tests/service.sh
trap 'kill "$service" 2>/dev/null || true; rm -rf "$data"' EXIT

if [ ! -e "$place/done-$version" ]; then
    python3 -m venv --clear "$place/python"
    "$place/python/bin/pip" install --quiet --disable-pip-version-check pytest==9.2.0 pytest-asyncio==1.5.0 "redis==$version"
    "$place/python/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary redis --dest "$place" "redis==$version"
    tar --extract --gzip --file "$place/redis-$version.tar.gz" --directory "$place"
    touch "$place/done-$version"
fi

serve suite CUCKOOD__RESP__LISTEN=127.0.0.1:0
port=$(grep -m1 'listening for Redis clients' "$log" | grep -o '"address":"[^"]*' | grep -o '[0-9]*$')
"$place/python/bin/python" tests/redis/suite.py "$port" "$place/redis-$version"
stop
