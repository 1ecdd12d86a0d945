#!/usr/bin/env bash
# Redis' protocol at 50 connections: each command of ours and Redis' own set in alternating rounds, the server on the first processor and
# the load on the others. Prints the median of each and the ratio with its range. Needs redis-server (apt install redis-server), which is
# Redis as Debian has it. Name the program: run.sh target/dist/cuckood
set -euo pipefail
program=${1:?which program?} port=${PORT:-18090} rounds=${ROUNDS:-5} requests=${REQUESTS:-200000}
items=1000000
data=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$data"' EXIT
others=$(($(nproc) > 1 ? $(nproc) - 1 : 0))

CUCKOOD__SERVER__LISTEN=127.0.0.1:$((port + 2)) CUCKOOD__RESP__LISTEN=127.0.0.1:$port CUCKOOD__LOG__LEVEL=warn \
    CUCKOOD__STORAGE__PATH=$data/cuckood taskset -c 0 "$program" &
mkdir "$data/redis"
taskset -c 0 redis-server --port $((port + 1)) --dir "$data/redis" --appendonly yes --appendfsync always --save '' >/dev/null &
for each in $port $((port + 1)); do
    until redis-cli -p "$each" ping 2>/dev/null | grep -q PONG && redis-cli -p "$each" exists bench 2>/dev/null | grep -q 0; do sleep 0.1; done
done

# load PORT PIPELINE REQUESTS COMMAND…: commands per second.
load() {
    taskset -c 1-$((others > 0 ? others : 1)) redis-benchmark -p "$1" -c 50 -P "$2" -n "$3" -r "${range:-$items}" --csv "${@:4}" 2>/dev/null |
        tail -1 | cut -d'"' -f4
}

redis-cli -p $port CF.RESERVE bench $((4 * items)) >/dev/null
echo "filling both with $items items"
load $port 64 $items CF.ADDNX bench u__rand_int__ >/dev/null
load $((port + 1)) 64 $items SADD bench u__rand_int__ >/dev/null

median() { sort -g | awk '{ of[NR] = $1 } END { print of[int((NR + 1) / 2)] }'; }

# compare TITLE PIPELINE REQUESTS OURS THEIRS: words of the commands, without the key.
compare() {
    local ours theirs
    : >"$data/ours" && : >"$data/theirs" && : >"$data/ratios"
    for _ in $(seq "$rounds"); do
        # shellcheck disable=SC2086
        ours=$(load $port "$2" "$3" $4)
        # shellcheck disable=SC2086
        theirs=$(load $((port + 1)) "$2" "$3" $5)
        echo "$ours" >>"$data/ours"
        echo "$theirs" >>"$data/theirs"
        awk -v ours="$ours" -v theirs="$theirs" 'BEGIN { print ours / theirs }' >>"$data/ratios"
    done
    printf '%-44s %10.0f/s %10.0f/s  %.2f (%.2f to %.2f)\n' "$1" "$(median <"$data/ours")" "$(median <"$data/theirs")" \
        "$(median <"$data/ratios")" "$(sort -g "$data/ratios" | head -1)" "$(sort -g "$data/ratios" | tail -1)"
}

thousand=$(printf 'u__rand_int__ %.0s' $(seq 1000))
echo "                                                cuckood        Redis  ratio"
compare "CF.EXISTS, SISMEMBER" 1 "$requests" "CF.EXISTS bench u__rand_int__" "SISMEMBER bench u__rand_int__"
compare "CF.EXISTS, SISMEMBER, -P 16" 16 $((4 * requests)) "CF.EXISTS bench u__rand_int__" "SISMEMBER bench u__rand_int__"
compare "CF.MEXISTS, SMISMEMBER of 1 000" 1 $((requests / 50)) "CF.MEXISTS bench $thousand" "SMISMEMBER bench $thousand"
# Of so many hardly any comes twice: a filter holds few copies of one item.
range=2000000000
compare "CF.ADD fsync, SADD always" 1 $((requests / 2)) "CF.ADD bench v__rand_int__" "SADD bench v__rand_int__"
compare "CF.ADD fsync, SADD always, -P 16" 16 $((2 * requests)) "CF.ADD bench w__rand_int__" "SADD bench w__rand_int__"
