# shellcheck shell=bash
# Functions for a chroot with an empty Debian. Sourced in the root of the repository.

suite=${SUITE:-bookworm}
base=$PWD/target/package/debian-$suite
address=127.0.0.1:${PORT:-18480}
service=

say() { echo "package: $*"; }
fail() {
    say "$*" >&2
    exit 1
}

# Makes an empty Debian in $root.
make_root() {
    root=$(mktemp -d)
    trap remove_root EXIT
    if [ ! -d "$base" ]; then
        say "an empty Debian, once: $suite"
        rm -rf "$base.new"
        mkdir -p "$(dirname "$base")"
        debootstrap --variant=minbase "$suite" "$base.new" "${MIRROR:-http://deb.debian.org/debian}" >"$base.log"
        chroot "$base.new" apt-get install --yes --no-install-recommends adduser init-system-helpers >>"$base.log"
        mv "$base.new" "$base"
    fi
    cp --archive "$base/." "$root"
    mount -t proc proc "$root/proc"
    # Nothing is started while packages are installed: there is no init.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
}

remove_root() {
    [ -z "$service" ] || kill -KILL "$service" 2>/dev/null || true
    umount "$root/proc" 2>/dev/null || true
    rm -rf "$root"
}

# The log of the service.
output() { cat "$root/tmp/service.log"; }

until_ready() {
    for _ in $(seq 600); do
        ! curl --silent --fail "http://$address/readyz" >/dev/null || return 0
        kill -0 "$service" 2>/dev/null || fail "it has ended: $(output)"
        sleep 0.1
    done
    fail "it is not ready: $(output)"
}

ask() { curl --silent --show-error "http://$address$1" -H 'Content-Type: application/json' "${@:2}"; }
redeem() { ask /v1/coupons/welcome/redemptions -d '{"code":"K7Q2-9FXM","reference":"'"$1"'"}'; }

# The README's coupon.
redeem_first() {
    ask /v1/coupons/welcome -X PUT -d '{"capacity":1000}' >/dev/null
    ask /v1/coupons/welcome/codes -d '{"codes":["K7Q2-9FXM"]}' >/dev/null
    redeem order-42 | grep -q '"status":"redeemed"' || fail "no redemption"
}
