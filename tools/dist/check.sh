#!/usr/bin/env bash
# Runs each artifact: programs in the oldest Debian that can be made here, packages in the oldest that they support and in the usual one,
# the image, and the clients in empty environments. As root.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(id -u)" != 0 ] && sudo --non-interactive true 2>/dev/null; then
    exec sudo --non-interactive --preserve-env env "PATH=$PATH" "$0"
fi
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "NOT BUILT: check: it takes root and debootstrap"
    exit
fi
source tests/package/debian.sh
# From 2015, with glibc 2.19, on. Mirrors drop old ones with time.
for oldest in ${OLDEST:-jessie stretch buster bullseye}; do
    ! make_base "$oldest" || break
done
echo "dist: the oldest Debian that can be made here is $oldest"

# report COMMAND…: runs a check; the summary shows its times.
report() { "$@" 2>&1 | sed 'p; s/^[a-z]*: \(.* ms after .*\)$/dist: \1/; t; d'; }

# each PATTERN COMMAND…: runs a check with each artifact of that name.
each() {
    local artifacts
    mapfile -t artifacts < <(compgen -G "$DIST/$1")
    [ ${#artifacts[@]} -gt 0 ] || echo "NOT BUILT: check of $1, which was not built"
    for artifact in "${artifacts[@]}"; do report "${@:2}" "$artifact"; done
}
each 'cuckood-*-linux.tar.gz' env SUITE="$oldest" tests/package/binary.sh
for suite in bullseye bookworm; do each 'cuckood_*_amd64.deb' env SUITE=$suite tests/package/run.sh; done
each 'cuckood_*_arm64.deb' tests/package/run.sh
each 'cuckood-*-image.tar' tests/docker/run.sh

program=target/x86_64-unknown-linux-gnu/dist/cuckood
for needed in "$program" "$DIST/cuckood_client-*.whl" "$DIST/cuckood-client-*.tgz"; do
    compgen -G "$needed" >/dev/null || { echo "NOT BUILT: check of the clients: there is no ${needed##*/}" && exit; }
done
# The clients as an integrator installs them, with the examples of the documents.
place=target/package/clients
rm -rf "$place"
mkdir -p "$place"
python3 -m venv "$place/python"
"$place/python/bin/pip" install --quiet --disable-pip-version-check "$DIST"/cuckood_client-*.whl
npm install --prefix "$place/npm" --silent --no-audit --no-fund "$DIST"/cuckood-client-*.tgz
started=${EPOCHREALTIME/./}
CUCKOOD=$program CUCKOOD_CLIENT=$place/npm/node_modules/cuckood-client \
    "$place/python/bin/python" tests/docs/check.py docs/INTEGRATION.md
echo "dist: clients: $(((${EPOCHREALTIME/./} - started) / 1000)) ms for the examples of docs/INTEGRATION.md"
