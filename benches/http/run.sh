#!/usr/bin/env bash
# Checks and durable adds over HTTP at 50 connections, and Redis' sets in alternating rounds, the server on the first processor and the
# load on the others. Prints the median of each and the ratio with its range, what a check takes of the processor, and what an import of
# ten million lines leaves of memory beside the table. Needs wrk and redis-server (apt install wrk redis-server), which is Redis as
# Debian has it. Name the program: run.sh target/dist/cuckood
set -euo pipefail
program=$(realpath "${1:?which program?}") port=${PORT:-18080} rounds=${ROUNDS:-5} seconds=${SECONDS_EACH:-5} asked=${REQUESTS:-200000}
cd "$(dirname "$0")"
data=$(mktemp -d) url=http://127.0.0.1:$port
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$data"' EXIT
last=$(($(nproc) - 1)) others=0
[ "$last" -gt 0 ] && others=1-$last

CUCKOOD__SERVER__LISTEN=127.0.0.1:$port CUCKOOD__STORAGE__PATH=$data/cuckood CUCKOOD__LOG__LEVEL=warn taskset -c 0 "$program" &
server=$!
mkdir "$data/redis"
taskset -c 0 redis-server --port $((port + 1)) --dir "$data/redis" --appendonly yes --appendfsync always --save '' >/dev/null &
redis=$!
until curl -sf $url/readyz >/dev/null; do sleep 0.1; done
until redis-cli -p $((port + 1)) ping >/dev/null 2>&1; do sleep 0.1; done
curl -sf -X PUT $url/v1/campaigns/bench -H 'Content-Type: application/json' -d '{"capacity":2000000}' >/dev/null
users=$data/users && seq -f 'u%015.0f' 0 999999 >"$users"
took=$(curl -sf -o /dev/null -w '%{time_total}' -X POST -T "$users" -H 'Content-Type: text/plain' $url/v1/campaigns/bench/imports)
echo "import of a million lines: $took s"
redis-benchmark -p $((port + 1)) -c 50 -P 64 -n 1000000 -r 1000000 -q SADD bench u__rand_int__ >/dev/null 2>&1

# ours KIND ITEMS: requests per second.
ours() {
    KIND=$1 ITEMS=$2 taskset -c "$others" wrk -t1 -c50 -d"${seconds}s" --latency -s requests.lua $url >"$data/wrk"
    if grep -q Non-2xx "$data/wrk"; then
        cat "$data/wrk" >&2
        exit 1
    fi
    awk '/Requests\/sec/ { print $2 }' "$data/wrk"
}

# theirs COMMAND ITEMS: the same.
theirs() {
    local items=()
    for _ in $(seq "$2"); do items+=(u__rand_int__); done
    taskset -c "$others" redis-benchmark -p $((port + 1)) -c 50 -n $((asked / ($2 > 1 ? 50 : 1))) -r 2000000 --csv \
        "$1" bench "${items[@]}" 2>/dev/null | tail -1 | cut -d'"' -f4
}

median() { sort -g | awk '{ of[NR] = $1 } END { print of[int((NR + 1) / 2)] }'; }

# compare KIND ITEMS COMMAND: the command is Redis' own.
compare() {
    local mine other
    : >"$data/ours" && : >"$data/theirs" && : >"$data/ratios"
    for _ in $(seq "$rounds"); do
        mine=$(ours "$1" "$2") other=$(theirs "$3" "$2")
        echo "$mine" >>"$data/ours" && echo "$other" >>"$data/theirs"
        awk -v ours="$mine" -v theirs="$other" 'BEGIN { printf "%.2f\n", ours / theirs }' >>"$data/ratios"
    done
    printf '%-32s %12.0f/s %12.0f/s  %s (%s to %s)\n' "$1 of $2, $3" "$(median <"$data/ours")" "$(median <"$data/theirs")" \
        "$(median <"$data/ratios")" "$(sort -g "$data/ratios" | head -1)" "$(sort -g "$data/ratios" | tail -1)"
}

# cpu PROCESS: the processor time that it has had, in microseconds.
cpu() { awk -v tick="$(getconf CLK_TCK)" '{ print ($14 + $15) * 1e6 / tick }' "/proc/$1/stat"; }

# What a single check takes of the server's processor; the instructions of the program, too, where perf can count them.
cost() {
    local before requests
    before=$(cpu "$server")
    if perf stat -e instructions:u -x, -p "$server" -o "$data/perf" sleep 0.1 2>/dev/null && ! grep -q 'not ' "$data/perf"; then
        perf stat -e instructions:u,cache-misses -x, -p "$server" -o "$data/perf" sleep "$seconds" &
    else
        rm -f "$data/perf"
    fi
    ours check 1 >/dev/null
    requests=$(awk '/requests in/ { print $1 }' "$data/wrk")
    awk -v before="$before" -v after="$(cpu "$server")" -v of="$requests" 'BEGIN { printf "a check: %.1f us of processor", (after - before) / of }'
    before=$(cpu "$redis")
    theirs SISMEMBER 1 >/dev/null
    awk -v before="$before" -v after="$(cpu "$redis")" -v of="$asked" 'BEGIN { printf ", SISMEMBER %.1f\n", (after - before) / of }'
    [ ! -e "$data/perf" ] || awk -F, -v of="$requests" '$3 != "" { printf "a check: %.0f %s\n", $1 / of, $3 }' "$data/perf"
}

printf '%-32s %14s %14s  %s\n' "" cuckood Redis ratio
compare check 1 SISMEMBER
cost
compare check 1000 SMISMEMBER
compare add 1 SADD
compare add 1000 SADD

# What the process has in memory, in bytes.
resident() { awk '/^VmRSS/ { print $2 * 1024 }' "/proc/$server/status"; }

before=$(resident)
curl -sf -X PUT $url/v1/campaigns/large -H 'Content-Type: application/json' -d '{"capacity":10000000}' >/dev/null
seq -f 'u%015.0f' 0 9999999 | curl -sf -o /dev/null -X POST -T - -H 'Content-Type: text/plain' $url/v1/campaigns/large/imports
table=$(curl -sf $url/v1/campaigns/large | sed 's/.*"memory_bytes":\([0-9]*\).*/\1/')
awk -v before="$before" -v after="$(resident)" -v table="$table" 'BEGIN {
    printf "an import of ten million lines: %.0f MB more resident, of which the table is %.0f MB\n", (after - before) / 1e6, table / 1e6 }'
