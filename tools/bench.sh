#!/usr/bin/env bash
# Runs benchmarks; each argument is one of them:
#   filter       the filter, other crates and the bare memory, on huge pages (ITEMS=)
#   growth       bits per user and lookup time while filters grow, as docs/pictures/growth.svg
#   copies       the longest step of an import of many copies of each user, and their memory (USERS=8000000)
#   engine       commands through the engine, by durability
#   storage      snapshots and restarts with a table of 1 GB
#   holds        how long the writer is held while a pool is cleared, replaced, deleted (REDEMPTIONS=5000000)
#   ledger       redemptions: memory, time of each operation, pauses (REDEMPTIONS=1000000)
#   latency      waits at constant rates, and the cost of each layer around a handler
#   caps         what 20 caps and 2 exclusion lists add to eligibility at 10,000/s
#   batches      single checks next to batches of 10,000 (PROGRAM= names another build)
#   http resp flash-sale   next to RedisBloom or a Lua script in Redis, with one load generator for both
#   webdis       next to webdis, an HTTP gateway, before RedisBloom (Debian's webdis; SHARED=1: all on both processors)
#   curve        latency over load, at 10 to 90% of the maximum
#   start        startup with 117,000 tiny campaigns
#   scale        a filter of a billion users: import, snapshot, restart, replacement (23 GB of memory, 45 GB of disk)
#   beside       checks at 20,000/s during an import of 10 million and a replacement of 5 million, on one processor
#   attack       checks at 2,000/s and new connections during each attack, as a Markdown table (ROW= names some)
#   cluster      three nodes over three NATS servers (wrk; PARTS= names some of adds redemptions reads killed stopped wiped)
#   peers        filter http resp flash-sale
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/target/tools/bin:$PATH
[ $# -gt 0 ] || { sed -n '2,/^set/{/^set/d;s/^# \?//p}' "$0"; exit 2; }

bench() { cargo bench --profile dist --locked --bench "$@"; }
program() { cargo build --profile dist --locked --bin cuckood; }

[[ " $* " != *" peers "* ]] || set -- "${@/peers/}" filter http resp flash-sale
for what in "$@"; do
    case $what in
    '') continue ;;
    filter) GLIBC_TUNABLES=glibc.malloc.hugetlb=1 bench filter --features compare -- ${ITEMS:-} ;;
    growth) bench growth --package cuckood-filter > docs/pictures/growth.svg ;;
    copies) bench copies --package cuckood-filter -- ${USERS:-} ;;
    engine | storage | latency) bench "$what" ;;
    holds) bench holds -- "${REDEMPTIONS:-5000000}" ;;
    ledger) bench ledger -- "${REDEMPTIONS:-1000000}" ;;
    caps | batches) bench latency -- "$what" ;;
    http | resp | flash-sale | webdis | beside | curve | start | scale | attack)
        program
        cargo build --release --locked --package load
        target/release/load "$what" target/dist/cuckood --row "${ROW:-}" ${SHARED:+--shared}
        ;;
    cluster)
        tools/setup.sh
        program
        benches/cluster/run.py target/dist/cuckood "$(tests/cluster/server.sh)" ${PARTS:-}
        ;;
    *)
        echo "bench: unknown benchmark $what; tools/bench.sh lists them" >&2
        exit 2
        ;;
    esac
done
