#!/usr/bin/env bash
# Unpacks the archive that is this script's argument in an empty Debian (SUITE), runs the README's examples there, and kills the program
# with SIGKILL. Needs root and debootstrap. An archive for aarch64 runs outside of it, with qemu-user-static and libc6-arm64-cross.
set -euo pipefail
cd "$(dirname "$0")/../.."
archive=$(realpath "${1:?the archive}")
source tests/package/debian.sh
make_root

started=${EPOCHREALTIME/./}
tar --extract --gzip --file "$archive" --directory "$root/opt" --strip-components 1
newest=$(objdump -T "$root/opt/cuckood" | grep -o 'GLIBC_[0-9.]*' | sort --unique --version-sort | tail -1)
[ "$newest" = "$(printf '%s\nGLIBC_2.17\n' "$newest" | sort --version-sort | head -1)" ] || fail "it needs $newest"

case $archive in
*aarch64*) run=(qemu-aarch64-static -L /usr/aarch64-linux-gnu "$root/opt/cuckood") place=$root/tmp where=qemu ;;
*) run=(chroot "$root" /opt/cuckood) place=/tmp where=$suite ;;
esac
start() {
    CUCKOOD__SERVER__LISTEN=$address CUCKOOD__STORAGE__PATH=$place/data "${run[@]}" serve 2>>"$root/tmp/service.log" &
    service=$!
    until_ready
}
start
redeem_first
say "${archive##*/} in $where: first redemption $(((${EPOCHREALTIME/./} - started) / 1000)) ms after unpacking began"

say "killed with SIGKILL"
kill -KILL "$service"
wait "$service" || true
start
redeem order-43 | grep -q '"code":"code-redeemed"' || fail "the redemption is lost"
kill "$service"
wait "$service" || fail "it ended with status $?: $(output)"
service=

case $archive in
*aarch64*) ;;
*)
    say "the README's examples"
    # The program as check.py starts it.
    printf '#!/bin/sh\nmkdir -p "%s/$(dirname "$CUCKOOD__STORAGE__PATH")"\nexec chroot "%s" /opt/cuckood "$@"\n' "$root" "$root" >"$root/tmp/cuckood"
    chmod 755 "$root/tmp/cuckood"
    CUCKOOD=$root/tmp/cuckood tests/docs/check.py README.md
    ;;
esac
say "all well"
