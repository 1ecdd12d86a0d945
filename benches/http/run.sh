#!/usr/bin/env bash
# Checks and durable adds over HTTP at 50 connections, server and load sharing the machine; Redis beside it in the same
# run if redis-server is there. Needs wrk (apt install wrk redis-server). Name the program: run.sh target/dist/cuckood
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:?which program?} port=${PORT:-18080} seconds=${SECONDS_EACH:-5}
data=$(mktemp -d) url=http://127.0.0.1:$port
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$data"' EXIT
CUCKOOD__SERVER__LISTEN=127.0.0.1:$port CUCKOOD__STORAGE__PATH=$data/cuckood CUCKOOD__LOG__LEVEL=warn "$program" &
until curl -sf $url/readyz >/dev/null; do sleep 0.1; done
curl -sf -X PUT $url/v1/campaigns/bench -H 'Content-Type: application/json' -d '{"capacity":2000000}' >/dev/null
seq -f 'u%015.0f' 0 999999 | curl -sf -X POST -T - -H 'Content-Type: text/plain' $url/v1/campaigns/bench/imports; echo
load() {
    echo "== $1, $2 a request"
    KIND=$1 ITEMS=$2 wrk -t1 -c50 -d"${seconds}s" --latency -s benches/http/requests.lua $url | grep -E '50%|99%|Requests/sec|Non-2xx'
}
load check 1
load check 1000
load add 1
load add 1000
if command -v redis-server >/dev/null; then
    redis-server --port $((port + 1)) --dir "$data" --appendonly yes --appendfsync always --save '' --daemonize no >/dev/null &
    until redis-cli -p $((port + 1)) ping >/dev/null 2>&1; do sleep 0.1; done
    echo "== Redis SADD, appendfsync always, 50 connections"
    redis-benchmark -p $((port + 1)) -c 50 -n 300000 -r 2000000 -q SADD set u__rand_int__ | tr '\r' '\n' | tail -1
fi
