#!/usr/bin/env bash
# Redis clients, unchanged, against the program that is this script's argument: redis-py, ioredis and node-redis, and redis-cli and
# redis-benchmark if they are installed. Each once where nobody needs a key, once where all do. What they need goes into target/redis.
# Where Python's venv or npm is missing that part is skipped, but in CI.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "${1:-target/debug/cuckood}")
tests=$PWD/tests/redis
place=$PWD/target/redis
mkdir -p "$place"
data=$(mktemp -d)
. tests/service.sh
trap '[ -z "$service" ] || kill "$service" 2>/dev/null; rm -rf "$data"' EXIT

skipped() {
    echo "redis: $1 is missing: $2 is not tested"
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
    "$place/python/bin/pip" install --quiet --disable-pip-version-check -r "$tests/requirements.txt"
}

install_node() {
    mkdir -p "$place/node"
    cp "$tests/package.json" "$tests/package-lock.json" "$place/node"
    npm --prefix "$place/node" ci --ignore-scripts --silent --no-audit --no-fund
}

has_python= has_node=
if python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    once "$tests/requirements.txt" "$place/python/requirements.txt" install_python
    has_python=1
else
    skipped "Python 3.10 with venv (apt install python3-venv)" redis-py
fi
if node -e 'process.exit(Number(parseInt(process.versions.node) < 20))' 2>/dev/null && command -v npm >/dev/null; then
    once "$tests/package-lock.json" "$place/node/package-lock.json.done" install_node
    has_node=1
else
    skipped "Node 20 with npm (apt install npm)" "ioredis and node-redis"
fi

# clients [KEY]: all of them, with the key if there is one.
clients() {
    local port key=("$@")
    port=$(grep -m1 'listening for Redis clients' "$log" | grep -o '"address":"[^"]*' | grep -o '[0-9]*$')
    [ -z "$has_python" ] || "$place/python/bin/python" "$tests/test_redis_py.py" "$port" "$@"
    if [ -n "$has_node" ]; then
        cp "$tests/test_node.mjs" "$place/node"
        node "$place/node/test_node.mjs" "$port" "$@"
    fi
    if command -v redis-cli >/dev/null; then
        local cli=(redis-cli -p "$port" --no-auth-warning ${key:+-a "$key"})
        [ "$("${cli[@]}" CF.ADD cli u1)" = 1 ]
        [ "$("${cli[@]}" -3 CF.EXISTS cli u1)" = "(true)" ] || [ "$("${cli[@]}" -3 CF.EXISTS cli u1)" = true ]
        [ "$("${cli[@]}" --scan --pattern cli)" = cli ]
        echo "redis-cli ok"
    fi
    if command -v redis-benchmark >/dev/null; then
        redis-benchmark -p "$port" ${key:+-a "$key"} -q -n 2000 -r 1000000 -P 16 CF.ADD cli __rand_int__ >/dev/null
        redis-benchmark -p "$port" ${key:+-a "$key"} -q -n 2000 -t ping >/dev/null
        echo "redis-benchmark ok"
    fi
}

echo "== without keys"
serve without-keys CUCKOOD__RESP__LISTEN=127.0.0.1:0
clients
stop

echo "== with keys"
key=redis-clients
serve_with_key with-keys CUCKOOD__RESP__LISTEN=127.0.0.1:0
clients "$key"
stop
