#!/usr/bin/env bash
# Runs all tests, or the named parts: lint unit filter state log engine http resp project simulation crash process cluster linearizable redis clients console docs.
#
# After one build, the parts run in three lanes concurrently. Each part writes a log to target/test. A part that lacks a tool is not run; the
# summary names it. Tests print `NOT RUN: what: why` for skipped ones. With CI=true, anything skipped is a failure.
set -uo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/target/tools logs=$PWD/target/test
export PATH=$tools/bin:$PATH PIP_RETRIES=15 PIP_DEFAULT_TIMEOUT=60 npm_config_fetch_retries=6 CARGO_NET_RETRY=10
# The cache of incremental builds costs a clean build an eighth of its time.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=never
# A lint needs libFuzzer's interface, not its code.
export CUSTOM_LIBFUZZER_PATH=/nowhere/libfuzzer.a

# Tests run many services in one process. A login shell's soft limit is often 1,024.
ulimit -n "$(ulimit -Hn)"

lanes=("cluster linearizable redis" "unit filter state log engine http resp project simulation crash" "process clients console docs")
parts=${*:-lint ${lanes[*]}}
rm -rf "$logs" && mkdir -p "$logs"

# Prints the tools that a part lacks.
lacks() {
    case $1 in
    cluster | clients | redis | console | docs)
        [ -x "$tools/bin/nats-server" ] || echo "python3-venv or PyPI's packages"
        ;;&
    docs) command -v curl >/dev/null || echo "curl" ;;
    console) command -v chromium >/dev/null || echo "chromium" ;;
    esac
}

# The command of a part. The Rust tests print skipped ones.
command_of() {
    local cargo=(cargo test --quiet --locked)
    case $1 in
    lint) echo "tools/lint.sh" ;;
    unit) echo "${cargo[*]} --lib --bins -- --show-output" ;;
    filter | state | log | engine | http | resp | project | simulation | crash | process | cluster | linearizable) echo "${cargo[*]} --test $1 -- --show-output" ;;
    clients) echo "clients/run.sh" ;;
    redis) echo "tests/redis/run.sh" ;;
    console) echo "console/run.sh target/debug/cuckood test" ;;
    docs) echo "tests/docs/run.sh" ;;
    *)
        echo "test: unknown part $1" >&2
        exit 2
        ;;
    esac
}

# Runs a part unless it lacks something or was not asked for.
run() {
    local part=$1 lacking started=$SECONDS
    [[ " $parts " == *" $part "* ]] || return 0
    lacking=$(lacks "$part")
    if [ -n "$lacking" ]; then
        echo "NOT RUN: $part: missing ${lacking//$'\n'/, }" | tee "$logs/$part.log"
        echo "-" >"$logs/$part.seconds"
        return 0
    fi
    # shellcheck disable=SC2046
    if $(command_of "$part") >"$logs/$part.log" 2>&1 </dev/null; then
        echo "ok       $part, $((SECONDS - started)) s"
    else
        touch "$logs/$part.failed"
        echo "FAILED   $part, $((SECONDS - started)) s; the end of target/test/$part.log:"
        tail -n 100 "$logs/$part.log"
    fi
    echo $((SECONDS - started)) >"$logs/$part.seconds"
}

for part in $parts; do command_of "$part" >/dev/null || exit 2; done
tools/setup.sh || exit 1
run lint
if [ "$parts" != lint ]; then
    echo "building the tests"
    started=$SECONDS
    cargo test --quiet --locked --no-run || exit 1
    echo "ok       build, $((SECONDS - started)) s"
fi
for lane in "${lanes[@]}"; do
    for part in $lane; do run "$part"; done &
done
wait

echo
echo "part           seconds"
for part in $parts; do
    result=ok
    [ ! -e "$logs/$part.failed" ] || result=FAILED
    grep -q "^NOT RUN: $part:" "$logs/$part.log" && result="not run"
    printf '%-14s %7s  %s\n' "$part" "$(cat "$logs/$part.seconds")" "$result"
done
echo "all            $(printf %7s $SECONDS)"
status=0
if grep -hs '^NOT RUN: ' "$logs"/*.log | sort -u >"$logs/not-run"; [ -s "$logs/not-run" ]; then
    cat "$logs/not-run"
    [ -z "${CI:-}" ] || { echo "CI=true: what was not run is a failure" && status=1; }
fi
compgen -G "$logs/*.failed" >/dev/null && status=1
exit $status
