#!/usr/bin/env bash
# Prints the path of the NATS server for tests, and installs it first if needed. NATS_SERVER names another one.
set -euo pipefail
cd "$(dirname "$0")/../.."
server=${NATS_SERVER:-$PWD/target/tools/bin/nats-server}
[ -x "$server" ] || tools/setup.sh >&2
echo "$server"
