#!/usr/bin/env bash
# Tests the console: its types, its unit tests, that the committed files are what its source builds, and then its use in Chromium
# over the program that is this script's argument. Wants target/tools (tools/setup.sh) and Chromium.
# A second argument names another task: `build` writes assets/console, `pictures` takes pictures, `cluster` looks at three real nodes.
set -euo pipefail
CUCKOOD=$(realpath "${1:-target/debug/cuckood}")
cd "$(dirname "$0")"
export CUCKOOD PATH=$PWD/../target/tools/bin:$PATH

if ! cmp -s package-lock.json node_modules/package-lock.json; then
    ../tools/npm-ci.sh
    cp package-lock.json node_modules/
fi

case "${2:-test}" in
build)
    npm run --silent build
    ;;
pictures | cluster)
    # The page as its sources are, even if the program has an older one.
    export CONSOLE=$PWD/build/built
    npm run --silent build build/built
    fc-list :lang=zh 2>/dev/null | grep -q . || echo "console: no Chinese font; to install: apt-get install fonts-wqy-microhei"
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
    npm run --silent test:browser
    ;;
esac
