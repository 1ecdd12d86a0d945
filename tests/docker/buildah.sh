# shellcheck shell=bash
# Functions to build images with buildah as root, without a registry of images. Sourced in the root of the repository.

place=$PWD/target/docker
mkdir -p "$place"

build() { buildah --root "$place/storage" --runroot "$place/run" --storage-driver vfs "$@"; }

# import_image DIRECTORY NAME: names a directory's content as an image.
import_image() {
    local container
    container=$(build from scratch)
    build add --quiet "$container" "$1" / >/dev/null
    build config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    build commit --quiet "$container" "$2" >/dev/null
    build rm "$container" >/dev/null
}

# of_dockerfile STAGE: the image that a stage of the Dockerfile starts from.
of_dockerfile() { sed -n "s/^FROM \(.*\) AS $1\$/\1/p" Dockerfile; }

# Makes the image that the Dockerfile's first stage starts from: Debian 12 without documents, as debian:bookworm-slim is.
make_base() {
    local name
    name=docker.io/library/$(of_dockerfile base)
    ! build inspect --type image "$name" >/dev/null 2>&1 || return 0
    if [ ! -d "$place/debian" ]; then
        echo "docker: making a base image with debootstrap"
        rm -rf "$place/debian.new"
        debootstrap --variant=minbase bookworm "$place/debian.new" "${MIRROR:-http://deb.debian.org/debian}" >"$place/debootstrap.log"
        (
            cd "$place/debian.new"
            rm -rf var/cache/apt/archives var/cache/apt/*.bin var/lib/apt/lists var/log/*.log usr/share/{groff,info,lintian,locale,man}
            find usr/share/doc -type f ! -name copyright -delete
        )
        mv "$place/debian.new" "$place/debian"
    fi
    import_image "$place/debian" "$name"
}
