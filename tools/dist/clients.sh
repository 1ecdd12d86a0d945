#!/usr/bin/env bash
# Packs the clients.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ ! -x target/tools/bin/hatchling ]; then
    echo "NOT BUILT: clients: python3-venv or PyPI's packages are missing"
    exit
fi
for client in clients/python clients/typescript; do cp LICENSE-* "$client/"; done
(cd clients/python && hatchling build --directory "$DIST")
cd clients/typescript
../../tools/npm-ci.sh
npm run --silent build
npm pack --silent --ignore-scripts --pack-destination "$DIST"
