#!/usr/bin/env bash
# A flash sale at 50 connections, one for each user: redemptions in an open pool over HTTP, and Redis with a Lua script and `appendfsync
# always`, in alternating rounds: while stocks last, and sold out. The server is on the first processor and the load on the others. Prints the
# median of each and the ratio with its range. Needs wrk and redis-server (apt install wrk redis-server), which is Redis as Debian has it.
# Name the program: run.sh target/dist/cuckood
set -euo pipefail
program=$(realpath "${1:?which program?}") port=${PORT:-18070} rounds=${ROUNDS:-5} seconds=${SECONDS_EACH:-5} requests=${REQUESTS:-100000}
cd "$(dirname "$0")"
data=$(mktemp -d) url=http://127.0.0.1:$port
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$data"' EXIT
last=$(($(nproc) - 1)) others=0
[ "$last" -gt 0 ] && others=1-$last

CUCKOOD__SERVER__LISTEN=127.0.0.1:$port CUCKOOD__STORAGE__PATH=$data/cuckood CUCKOOD__LOG__LEVEL=warn taskset -c 0 "$program" &
mkdir "$data/redis"
taskset -c 0 redis-server --port $((port + 1)) --dir "$data/redis" --appendonly yes --appendfsync always --save '' >/dev/null &
until curl -sf $url/readyz >/dev/null; do sleep 0.1; done
until redis-cli -p $((port + 1)) ping >/dev/null 2>&1; do sleep 0.1; done
script=$(redis-cli -p $((port + 1)) SCRIPT LOAD "$(cat stock.lua)")

# ours NAME STOCK: redemptions per second in a new pool. All of them succeed, or with a stock of 1 nearly none.
ours() {
    curl -sf -X PUT "$url/v1/coupons/$1" -H 'Content-Type: application/json' -d "{\"capacity\":1000000,\"stock\":$2}" >/dev/null
    POOL=$1 taskset -c "$others" wrk -t1 -c50 -d"${seconds}s" --latency -s redeem.lua $url >"$data/wrk"
    if [ "$2" -gt 1 ] && grep -q Non-2xx "$data/wrk"; then
        cat "$data/wrk" >&2
        exit 1
    fi
    awk '/Requests\/sec/ { print $2 }' "$data/wrk"
}

# theirs NAME STOCK: the same with the script. A user is one of two thousand million, so hardly any comes twice.
theirs() {
    redis-cli -p $((port + 1)) SET "$1:left" "$2" >/dev/null
    taskset -c "$others" redis-benchmark -p $((port + 1)) -c 50 -n "$requests" -r 2000000000 --csv \
        EVALSHA "$script" 2 "$1:left" "$1:users" u__rand_int__ 2>/dev/null | tail -1 | cut -d'"' -f4
}

median() { sort -g | awk '{ of[NR] = $1 } END { print of[int((NR + 1) / 2)] }'; }

# compare TITLE NAME STOCK
compare() {
    local our their
    : >"$data/ours" && : >"$data/theirs" && : >"$data/ratios"
    for round in $(seq "$rounds"); do
        our=$(ours "$2-$round" "$3")
        their=$(theirs "$2-$round" "$3")
        echo "$our" >>"$data/ours"
        echo "$their" >>"$data/theirs"
        awk -v ours="$our" -v theirs="$their" 'BEGIN { print ours / theirs }' >>"$data/ratios"
    done
    printf '%-20s %10.0f/s %10.0f/s  %.2f (%.2f to %.2f)\n' "$1" "$(median <"$data/ours")" "$(median <"$data/theirs")" \
        "$(median <"$data/ratios")" "$(sort -g "$data/ratios" | head -1)" "$(sort -g "$data/ratios" | tail -1)"
}

echo "                        cuckood  Redis + Lua  ratio"
compare "while stocks last" sale 100000000
compare "sold out" gone 1
