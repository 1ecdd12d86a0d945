#!/usr/bin/env bash
# Tests the console: its types, its unit tests, that the committed files are what its source builds, and then its use in Chromium
# over the program that is this script's argument. Where npm or Chromium is missing that part is skipped, but in CI.
# With another word behind the program it does that instead: `build` writes assets/console, `pictures` takes pictures, `cluster` looks
# at three real nodes.
set -euo pipefail
cd "$(dirname "$0")"
CUCKOOD=$(realpath -m "${1:-../target/debug/cuckood}")
export CUCKOOD

skipped() {
    echo "console: $1 is missing: $2"
    [ -z "${CI:-}" ]
    exit
}

if ! { node -e 'process.exit(Number(parseInt(process.versions.node) < 20))' && command -v npm; } >/dev/null 2>&1; then
    skipped "Node 20 with npm (apt install npm)" "the console is not tested"
fi
if ! cmp -s package-lock.json node_modules/package-lock.json; then
    npm ci --ignore-scripts --silent --no-audit --no-fund
    cp package-lock.json node_modules/
fi

case "${2:-test}" in
build)
    npm run --silent build
    ;;
pictures | cluster)
    npm run --silent "$2"
    ;;
test)
    npm run --silent check
    npm run --silent test
    npm run --silent build build/built
    diff -r build/built ../assets/console || {
        echo "console: assets/console is not what console/ builds: run \`make console\`"
        exit 1
    }
    if [ -z "${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome)}" ]; then
        skipped "Chromium (apt install chromium)" "the console is not tried in a browser"
    fi
    npm run --silent test:browser
    ;;
esac
