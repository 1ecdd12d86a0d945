#!/usr/bin/env bash
# Runs each artifact: programs and packages in the oldest and the usual Debian, the image, and the clients in empty environments. As root.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(id -u)" != 0 ] && sudo --non-interactive true 2>/dev/null; then
    exec sudo --non-interactive --preserve-env env "PATH=$PATH" "$0"
fi
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "NOT BUILT: check: it takes root and debootstrap"
    exit
fi
# Which older ones a mirror still has changes with time.
oldest=${OLDEST:-bullseye}

# report COMMAND…: runs a check; the summary shows its times.
report() { "$@" 2>&1 | sed 'p; s/^[a-z]*: \(.* ms after .*\)$/dist: \1/; t; d'; }

shopt -s nullglob
for archive in "$DIST"/cuckood-*-linux.tar.gz; do SUITE=$oldest report tests/package/binary.sh "$archive"; done
for suite in "$oldest" bookworm; do SUITE=$suite report tests/package/run.sh "$DIST"/cuckood_*_amd64.deb; done
for image in "$DIST"/cuckood-*-image.tar; do report tests/docker/run.sh "$image"; done

# The clients as an integrator installs them, with the examples of the documents.
place=target/package/clients
rm -rf "$place"
mkdir -p "$place"
python3 -m venv "$place/python"
"$place/python/bin/pip" install --quiet --disable-pip-version-check "$DIST"/cuckood_client-*.whl
npm install --prefix "$place/npm" --silent --no-audit --no-fund "$DIST"/cuckood-client-*.tgz
started=${EPOCHREALTIME/./}
CUCKOOD=target/x86_64-unknown-linux-gnu/dist/cuckood CUCKOOD_CLIENT=$place/npm/node_modules/cuckood-client \
    "$place/python/bin/python" tests/docs/check.py docs/INTEGRATION.md
echo "dist: clients: $(((${EPOCHREALTIME/./} - started) / 1000)) ms for the examples of docs/INTEGRATION.md"
