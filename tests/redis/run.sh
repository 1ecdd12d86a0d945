#!/usr/bin/env bash
# Redis clients, unchanged, against the program that is this script's argument: redis-py, ioredis and node-redis, and redis-cli and
# redis-benchmark. Each once without keys, once with keys. Then the changes of a real Redis are shadowed. Wants target/tools (tools/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "${1:-target/debug/cuckood}")
tests=$PWD/tests/redis
place=$PWD/target/redis
export PATH=$PWD/target/tools/bin:$PATH
mkdir -p "$place"
data=$(mktemp -d)
. tests/service.sh
redis= shadow=
trap 'for process in $service $redis $shadow; do kill "$process" 2>/dev/null; done; rm -rf "$data"' EXIT

# What npm installs stays in target/redis.
if ! cmp -s "$tests/package-lock.json" "$place/package-lock.json.done"; then
    cp "$tests/package.json" "$tests/package-lock.json" "$place"
    tools/npm-ci.sh "$place"
    cp "$tests/package-lock.json" "$place/package-lock.json.done"
fi
cp "$tests/test_node.mjs" "$place"

# clients [KEY]: all of them, with the key if there is one.
clients() {
    local port key=("$@")
    port=$(grep -m1 'listening for Redis clients' "$log" | grep -o '"address":"[^"]*' | grep -o '[0-9]*$')
    python3 "$tests/test_redis_py.py" "$port" "$@"
    python3 "$tests/test_strict.py" "$port" "$@"
    node "$place/test_node.mjs" "$port" "$@"
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

ask() { curl --silent --fail-with-body "$url/v1/$1" -H 'Content-Type: application/json' "${@:2}"; }

# A separate Redis on a free port, with a password and an append-only file.
start_redis() {
    local port
    for port in $(shuf --input-range 20000-29999 --head-count 20); do
        redis-server --port "$port" --requirepass secret --dir "$data" --save '' --appendonly yes >"$data/redis.log" &
        redis=$!
        export REDISCLI_AUTH=secret CUCKOOD_REDIS=redis://:secret@127.0.0.1:$port/2
        redis_cli=(redis-cli -p "$port" -n 2)
        while kill -0 "$redis" 2>/dev/null; do
            [ "$("${redis_cli[@]}" PING 2>/dev/null)" != PONG ] || return 0
            sleep 0.1
        done
    done
    cat "$data/redis.log"
    exit 1
}

# Ends with the status that is named first.
status() {
    local wanted=$1 found=0
    "${@:2}" >"$data/result" 2>"$data/notices" || found=$?
    [ "$found" = "$wanted" ] || { cat "$data/result" "$data/notices"; echo "redis: ${*:2} ended with $found"; exit 1; }
}
tells() { grep --quiet --fixed-strings -- "$1" "$data/result" || { cat "$data/result" "$data/notices"; echo "redis: no $1"; exit 1; }; }

# A set of Redis is moved over: mirrored while it changes, compared, and mirrored again from the append-only file.
shadowed() {
    local into=(--key seen --into campaigns/seen --url "$url") compare
    compare=(status 0 "$program" shadow "${into[@]}" --compare "$data/items")
    start_redis
    ask campaigns/seen -X PUT -d '{"capacity":10000,"mode":"strict"}' >/dev/null
    ask campaigns/again -X PUT -d '{"capacity":10000,"mode":"strict"}' >/dev/null
    seq -f 'user-%.0f' 2000 >"$data/items"
    "$program" shadow "${into[@]}" >"$data/shadow.json" 2>"$data/shadow.log" &
    shadow=$!
    until grep --quiet 'mirrored from now on' "$data/shadow.log" 2>/dev/null; do
        kill -0 "$shadow" || { cat "$data/shadow.log"; exit 1; }
        sleep 0.1
    done
    sed 's/^/SADD seen /' "$data/items" | "${redis_cli[@]}" >/dev/null
    "${redis_cli[@]}" EVAL "return redis.call('SREM', KEYS[1], 'user-1', 'user-2')" 1 seen >/dev/null
    printf 'MULTI\nSREM seen user-3\nSADD seen "a b" "\\"quoted\\""\nEXEC\n' | "${redis_cli[@]}" >/dev/null
    # In another database that is another set.
    "${redis_cli[@]}" -n 0 SADD seen elsewhere >/dev/null
    # This change must be the last.
    "${redis_cli[@]}" SADD seen last >/dev/null
    until ask campaigns/seen/users/check -d '{"users":["last"]}' | grep --quiet true; do sleep 0.1; done
    printf 'a b\n"quoted"\nelsewhere\nlast\n' >>"$data/items"
    "${compare[@]}"
    tells '"both":2000,'
    tells '"neither":4,'
    kill -INT "$shadow"
    wait "$shadow" || { cat "$data/shadow.json" "$data/shadow.log"; exit 1; }
    shadow=
    ask campaigns/seen/users/remove -d '{"users":["user-7"]}' >/dev/null
    status 1 "$program" shadow "${into[@]}" --compare "$data/items"
    tells '"disagreements":[{"cuckood":false,"line":7,"redis":true}]'
    status 0 "$program" shadow --key seen --into campaigns/again --url "$url" --commands "$data"/appendonlydir/*.incr.aof
    status 0 "$program" shadow --key seen --into campaigns/again --url "$url" --compare "$data/items"
    kill "$redis"
    wait "$redis" || true
    redis=
    unset REDISCLI_AUTH CUCKOOD_REDIS
    echo "shadow ok"
}

echo "== without keys"
serve without-keys CUCKOOD__RESP__LISTEN=127.0.0.1:0
clients
if command -v redis-server >/dev/null && command -v redis-cli >/dev/null; then
    shadowed
else
    echo "NOT RUN: redis-cli, redis-benchmark and shadowing a Redis: redis-tools is missing"
fi
stop

echo "== with keys"
key=redis-clients
serve_with_key with-keys CUCKOOD__RESP__LISTEN=127.0.0.1:0
clients "$key"
stop
