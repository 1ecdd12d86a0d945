#!/usr/bin/env bash
# Adds the program to the first stage of the Dockerfile, and writes the image as an OCI archive.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(id -u)" != 0 ] && sudo --non-interactive true 2>/dev/null; then
    exec sudo --non-interactive --preserve-env env "PATH=$PATH" "$0"
fi
if [ "$(id -u)" != 0 ] || ! command -v buildah >/dev/null || ! command -v debootstrap >/dev/null; then
    echo "NOT BUILT: image: it takes root, buildah and debootstrap"
    exit
fi
program=target/x86_64-unknown-linux-gnu/dist/cuckood
if [ ! -x "$program" ]; then
    echo "NOT BUILT: image: there is no program for x86_64"
    exit
fi
certificates=/etc/ssl/certs/ca-certificates.crt
source tests/docker/buildah.sh

make_base
build bud --isolation chroot --pull-never --target base --timestamp "$SOURCE_DATE_EPOCH" --tag cuckood-base .
container=$(build from --pull-never localhost/cuckood-base)
build copy --chmod 755 "$container" "$program" /usr/local/bin/cuckood
build copy --chmod 644 "$container" "$certificates" "$certificates"
build config --label "org.opencontainers.image.version=$VERSION" --label org.opencontainers.image.licenses="MIT OR Apache-2.0" "$container"
layout=target/docker/layout
rm -rf "$layout"
build commit --rm --disable-compression=false --format oci --timestamp "$SOURCE_DATE_EPOCH" "$container" "oci:$layout:cuckood:$VERSION"
# `docker load` without containerd's store reads this file of its own format.
(
    cd "$layout"
    python3 - <<'PYTHON' >manifest.json
import json
import os


def path(blob: dict) -> str:
    return "blobs/" + blob["digest"].replace(":", "/")


manifest = json.load(open(path(json.load(open("index.json"))["manifests"][0])))
layers = [path(layer) for layer in manifest["layers"]]
print(json.dumps([{"Config": path(manifest["config"]), "RepoTags": [f"cuckood:{os.environ['VERSION']}"], "Layers": layers}]))
PYTHON
)
tools/dist/pack.sh "$DIST/cuckood-$VERSION-x86_64-image.tar" "$layout" blobs index.json manifest.json oci-layout
