#!/usr/bin/env bash
# Builds the program for each processor, and packs it with documents, manual pages, completions, licenses, settings and the unit.
set -euo pipefail
cd "$(dirname "$0")/../.."
# The other parts take the programs that they find: not those of an earlier commit.
rm -f target/*-unknown-linux-gnu/dist/cuckood
if ! command -v cargo-zigbuild >/dev/null; then
    echo "NOT BUILT: binary: cargo-zigbuild is missing"
    exit
fi
# Paths of this machine don't belong in panic messages.
export RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo --remap-path-prefix=$PWD=/cuckood"

other=aarch64
[ "$(uname -m)" != aarch64 ] || other=x86_64
# This machine's program comes first: it writes the manual pages of both.
for arch in "$(uname -m)" $other; do
    target=$arch-unknown-linux-gnu
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ] && ! rustup target add "$target"; then
        echo "NOT BUILT: program for $arch: rustup target add $target failed"
        continue
    fi
    cargo zigbuild --locked --profile dist --bin cuckood --target "$target.2.17"
    [ "$arch" != "$(uname -m)" ] || deploy/debian/prepare.sh "target/$target/dist/cuckood"

    name=cuckood-$VERSION-$arch-linux
    place=target/package/$name
    rm -rf "$place"
    install -D --mode=755 "target/$target/dist/cuckood" "$place/cuckood"
    cp -r LICENSE-* target/package/THIRD-PARTY.gz target/package/man "$place/"
    tools/dist/documents.py "$place" config.toml deploy/systemd/cuckood.service deploy/prometheus/alerts.yml deploy/grafana/cuckood.json
    install -D --mode=644 --target-directory "$place/completions" target/package/{cuckood.bash,cuckood.fish,_cuckood}
    tools/dist/pack.sh "$DIST/$name.tar.gz" target/package "$name"
    echo "dist: $name: $(stat --format=%s "$place/cuckood") bytes"
done
