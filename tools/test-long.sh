#!/usr/bin/env bash
# Runs the tests that take minutes to hours; each argument is one of them:
#   cluster        faults of servers, disks and networks (CLUSTER_ROUNDS=3), also behind haproxy; linearizability over crashes
#                  and partitions (LINEARIZABLE_ROUNDS); old and new nodes in one cluster: builds an earlier commit, and the
#                  release build unless CUCKOOD_RELEASE names a released program
#   crash          kill -9 under load (CRASH_KILLS=2000)
#   linearizable   64 clients at 100 codes for a minute, with kills
#   simulation     fresh seeds of simulated histories (SEEDS=10000)
#   soak           random logs next to a real process with kills and backups (SOAK_MINUTES=60)
#   fill           1,000 fillings of filters of fixed size at each capacity
#   fuzz           each fuzz target (FUZZ_SECONDS=60; cargo install cargo-fuzz)
#   loom           every order of a reader and the stores of the filter's writer
#   tsan asan      sanitizers over the filter (rustup component add rust-src)
#   miri           the filter's unit tests (rustup component add --toolchain nightly miri rust-src)
#   redis          redis-py's own tests of CF.* commands, from its package
#   schemathesis   requests generated from the OpenAPI document
#   power-cut      100 simulated power cuts under a log of all commands, with restores (root, FUSE, loop mounts)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/target/tools/bin:$PATH
[ $# -gt 0 ] || { sed -n '2,/^set/{/^set/d;s/^# \?//p}' "$0"; exit 2; }

host=$(rustc -vV | sed -n 's/^host: //p')
filter=(--package cuckood-filter --locked)

# sanitize NAME FILTERS: the pinned toolchain can, with a flag; the standard library is built as well, to check its locks.
sanitize() {
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=$1 cargo test "${filter[@]}" --target-dir "target/$1" -Zbuild-std --target "$host" "${@:3}"
}

# build_before: the last commit whose nodes write other messages than today's, once.
build_before() {
    export CUCKOOD_BEFORE=$PWD/target/before-build/debug/cuckood
    [ ! -x "$CUCKOOD_BEFORE" ] || return 0
    [ -d target/before ] || git worktree add --detach target/before 855eaac1ec06ae16996c187f8edb033a71ac0b1f
    (cd target/before && cargo build --locked --bin cuckood --target-dir ../before-build)
}

# build_release: the program that runs next to later builds: a released one, or else this commit's release build.
build_release() {
    [ -z "${CUCKOOD_RELEASE:-}" ] || return 0
    cargo build --release --locked --bin cuckood
    export CUCKOOD_RELEASE=$PWD/target/release/cuckood
}

for what in "$@"; do
    echo "== $what"
    case $what in
    cluster)
        build_before
        cargo test --locked --test cluster -- --ignored --nocapture --test-threads 1
        build_release
        cargo test --locked --test cluster -- --nocapture versions::
        cargo test --locked --test linearizable -- --ignored --nocapture --test-threads 1
        ;;
    crash) CRASH_KILLS=${CRASH_KILLS:-2000} cargo test --locked --test crash -- --nocapture ;;
    linearizable) LINEARIZABLE_SECONDS=60 cargo test --locked --test linearizable -- --nocapture ;;
    simulation) SEEDS=${SEEDS:-10000} cargo test --locked --test simulation -- --nocapture ;;
    soak)
        export SOAK_SECONDS=$((${SOAK_MINUTES:-60} * 60))
        cargo test --locked --no-run --test engine --test crash
        cargo test --locked --test engine -- --nocapture restores::restored_state_equals_live_state &
        logs=$!
        cargo test --locked --test crash -- --ignored --nocapture
        wait $logs
        ;;
    fill) CUCKOOD_FILLINGS=1000 cargo test "${filter[@]}" --release --target-dir target/filter --test filter -- --nocapture fill:: ;;
    fuzz)
        for target in fuzz/targets/*.rs; do
            target=$(basename "$target" .rs)
            mkdir -p "fuzz/corpus/$target" "fuzz/seeds/$target"
            RUSTC_BOOTSTRAP=1 cargo fuzz run --target-dir target/fuzz "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
                -dict=fuzz/dictionary.txt -max_total_time="${FUZZ_SECONDS:-60}"
        done
        ;;
    loom) RUSTFLAGS="--cfg loom" cargo test "${filter[@]}" --target-dir target/loom --lib race ;;
    tsan) CUCKOOD_RACE_HITS=${RACE_HITS:-200000} sanitize thread tsan --lib --test filter -- race tables_are_replaced cleared_filters any_order ;;
    asan) sanitize address asan ;;
    # Miri can't unmap a part of a mapping, so tables are on the heap there.
    miri)
        MIRIFLAGS=-Zmiri-disable-isolation CUCKOOD_RACE_HITS=2000 PROPTEST_CASES=2 \
            cargo +nightly miri test "${filter[@]}" --target-dir target/miri --lib -- --skip memory
        ;;
    redis)
        tools/setup.sh
        cargo build --locked --bin cuckood
        tests/redis/suite.sh
        ;;
    schemathesis)
        cargo test --locked --no-run --test process
        tests/schemathesis/run.sh
        ;;
    power-cut)
        cargo test --release --locked --package power-cut
        cargo run --release --locked --package power-cut -- 100
        ;;
    *)
        echo "test-long: unknown test $what; tools/test-long.sh lists them" >&2
        exit 2
        ;;
    esac
done
