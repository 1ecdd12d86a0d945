# shellcheck shell=bash
# Functions for a chroot with an empty Debian. Sourced in the root of the repository.

suite=${SUITE:-bookworm}
address=127.0.0.1:${PORT:-18480}
service=

say() { echo "package: $*"; }
fail() {
    say "$*" >&2
    exit 1
}

# make_base SUITE: makes an empty Debian in target/package, once. Fails if no mirror has it.
make_base() {
    local base=$PWD/target/package/debian-$1 mirror
    [ ! -d "$base" ] || return 0
    mkdir -p "$(dirname "$base")"
    # Suites move to the archive, and their keys to the second file.
    cat /usr/share/keyrings/debian-archive-{keyring,removed-keys}.gpg >"$base.keys"
    for mirror in ${MIRROR:-http://deb.debian.org/debian http://archive.debian.org/debian}; do
        curl --silent --fail --head --max-time 10 "$mirror/dists/$1/Release" >/dev/null || continue
        say "an empty Debian, once: $1"
        rm -rf "$base.new"
        if debootstrap --variant=minbase --include=adduser,init-system-helpers --keyring="$base.keys" "$1" "$base.new" "$mirror" >"$base.log"; then
            mv "$base.new" "$base"
            return
        fi
    done
    return 1
}

# Makes an empty Debian in $root.
make_root() {
    root=$(mktemp -d)
    trap remove_root EXIT
    make_base "$suite" || fail "can't make $suite"
    cp --archive "$PWD/target/package/debian-$suite/." "$root"
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
