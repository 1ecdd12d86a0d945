#!/usr/bin/env bash
# Installs the package that is this script's argument into an empty Debian, starts it as systemd would, upgrades it while it runs,
# removes and purges it, and checks after each step what must not have changed. A second argument names the package of an earlier release to
# upgrade from. Of another machine's package, it runs only the program (qemu-user-static, libc6-arm64-cross). Needs root, debootstrap and
# lintian.
#
# There is no systemd in the chroot: the unit's command line is started with the unit's environment, by the unit's user.
set -euo pipefail
cd "$(dirname "$0")/../.."
package=${1:?the .deb}
earlier=${2:-$package}
source tests/package/debian.sh

say "lintian"
lintian --fail-on error,warning "$package"

make_root
# has_files ROOT: whether all files are there.
has_files() {
    for file in bin/cuckood share/man/man1/cuckood.1.gz share/man/man1/cuckood-import.1.gz share/bash-completion/completions/cuckood \
        share/zsh/vendor-completions/_cuckood share/fish/vendor_completions.d/cuckood.fish lib/systemd/system/cuckood.service \
        share/doc/cuckood/{copyright,THIRD-PARTY.gz,changelog.Debian.gz,README.md,CHANGELOG.md,SECURITY.md,docs/OPERATIONS.md} \
        share/doc/cuckood/{docs/pictures/overview.png,examples/config.toml,examples/alerts.yml,examples/cuckood.json}; do
        [ -s "$1/usr/$file" ] || fail "there is no /usr/$file"
    done
}
if [ "$(dpkg-deb --field "$package" Architecture)" != "$(dpkg --print-architecture)" ]; then
    dpkg-deb --extract "$package" "$root"
    has_files "$root"
    qemu-aarch64-static -L /usr/aarch64-linux-gnu "$root/usr/bin/cuckood" --version
    say "all well; ${package##*/} was not installed"
    exit
fi
inside() { chroot "$root" env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
install_package() {
    cp "$1" "$root/tmp/package.deb"
    # As an unattended upgrade does it: the operator's settings stay.
    inside apt-get install --yes --no-install-recommends -o Dpkg::Options::=--force-confold /tmp/package.deb >"$root/tmp/apt.log" 2>&1 || fail "$(cat "$root/tmp/apt.log")"
}
unit=$root/usr/lib/systemd/system/cuckood.service
of_unit() { sed -n "s/^$1=//p" "$unit"; }
start() {
    # shellcheck disable=SC2046
    chroot "$root" setpriv --reuid "$(of_unit User)" --regid "$(of_unit Group)" --clear-groups --no-new-privs --inh-caps=-all \
        env --ignore-environment $(of_unit Environment) CUCKOOD__SERVER__LISTEN="$address" $(of_unit ExecStart) 2>>"$root/tmp/service.log" &
    service=$!
    until_ready
}
stop() {
    kill "$service"
    wait "$service" || fail "it ended with status $?: $(output)"
    service=
}
data() { (cd "$root/var/lib/cuckood" && find . -type f -exec sha256sum {} + | sort && find . -printf '%m %u %g %p\n' | sort); }

say "installed"
started=${EPOCHREALTIME/./}
install_package "$earlier"
[ "$(inside getent passwd cuckood | cut -d: -f6-7)" = "/var/lib/cuckood:/usr/sbin/nologin" ] || fail "the user"
[ "$(inside stat -c '%U %G %a' /var/lib/cuckood)" = "cuckood cuckood 700" ] || fail "the data directory: $(inside stat -c '%U %G %a' /var/lib/cuckood)"
[ "$(inside dpkg-query --showformat='${Conffiles}' --show cuckood | awk '{ print $1 }')" = /etc/cuckood/config.toml ] || fail "conffiles"
[ -L "$root/etc/systemd/system/multi-user.target.wants/cuckood.service" ] || fail "the unit is not enabled"
has_files "$root"
inside bash -c '. /usr/share/bash-completion/completions/cuckood && complete -p cuckood' >/dev/null || fail "completions"

say "started as its user"
start
[ "$(stat -c %u "/proc/$service")" = "$(inside id -u cuckood)" ] || fail "its user"
inside env CUCKOOD__SERVER__LISTEN="$address" cuckood healthcheck --config /etc/cuckood/config.toml || fail "healthcheck"
redeem_first
say "${earlier##*/} in $suite: first redemption $(((${EPOCHREALTIME/./} - started) / 1000)) ms after the installation began"

say "upgraded while it runs"
echo '# a line of the operator' >>"$root/etc/cuckood/config.toml"
newer=$root/tmp/newer
dpkg-deb --raw-extract "$package" "$newer"
sed -i 's/^Version: .*/&+newer/' "$newer/DEBIAN/control"
dpkg-deb --root-owner-group --build "$newer" "$newer.deb" >/dev/null
install_package "$newer.deb"
[[ $(inside dpkg-query --showformat='${Version}' --show cuckood) = *+newer ]] || fail "the version"
say "from ${earlier##*/} to ${package##*/}"
redeem order-43 | grep -q '"code":"code-redeemed"' || fail "it no longer serves during the upgrade"
stop
start
redeem order-42 | grep -q '"reference":"order-42"' || fail "the redemption is lost"
grep -q 'a line of the operator' "$root/etc/cuckood/config.toml" || fail "the operator's settings are lost"
stop

say "removed, without touching data"
before=$(data)
[ -n "$before" ] || fail "there is no data"
inside apt-get remove --yes cuckood >/dev/null 2>&1
[ ! -e "$root/usr/bin/cuckood" ] || fail "the program is still there"
[ "$(data)" = "$before" ] || fail "removing it has changed the data"
[ -e "$root/etc/cuckood/config.toml" ] || fail "removing it has removed its settings"
install_package "$package"
[ "$(data)" = "$before" ] || fail "installing it again has changed the data"
start
redeem order-43 | grep -q '"code":"code-redeemed"' || fail "the redemption is lost"
stop

say "purged, which says that the data stays"
before=$(data)
inside apt-get purge --yes cuckood >"$root/tmp/purge.log" 2>&1
grep -q 'the data stays in /var/lib/cuckood' "$root/tmp/purge.log" || fail "$(cat "$root/tmp/purge.log")"
[ "$(data)" = "$before" ] || fail "purging it has changed the data"
[ ! -e "$root/etc/cuckood" ] || fail "purging it has left its settings"
rm -r "$root/var/lib/cuckood"

say "a purge without data leaves nothing"
install_package "$package"
inside apt-get purge --yes cuckood >"$root/tmp/purge.log" 2>&1
! grep -q 'the data stays' "$root/tmp/purge.log" || fail "$(cat "$root/tmp/purge.log")"
[ ! -e "$root/var/lib/cuckood" ] && [ ! -e "$root/etc/cuckood" ] || fail "purging it has left a directory"
say "all well"
