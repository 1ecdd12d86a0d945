#!/usr/bin/env bash
# Builds the container image from the Dockerfile, or loads the OCI archive that is this script's argument, and tests it: user, volume,
# keys, health check, SIGTERM.
#
# Uses docker if its daemon responds, otherwise buildah as root. buildah gets base images that are made here, from debootstrap and the
# local toolchain, so no registry of images is needed; they stay in target/docker.
set -euo pipefail
cd "$(dirname "$0")/../.."
archive=${1:-}
image=cuckood-test port=${PORT:-18481}
url=http://127.0.0.1:$port

say() { echo "docker: $*"; }
fail() {
    say "$*" >&2
    exit 1
}

if docker info >/dev/null 2>&1; then
    engine=docker
elif command -v buildah >/dev/null && command -v debootstrap >/dev/null && [ "$(id -u)" = 0 ]; then
    engine=buildah
else
    fail "no container engine; start docker, or as root: apt-get install buildah debootstrap"
fi
say "using $engine"

source tests/docker/buildah.sh

# Makes the image that the Dockerfile builds in: Debian with gcc and the local Rust toolchain.
make_builder() {
    local builder
    builder=docker.io/library/$(of_dockerfile builder)
    ! build inspect --type image "$builder" >/dev/null 2>&1 || return 0
    say "adding gcc and the local Rust toolchain"
    rm -rf "$place/rust"
    cp --archive "$place/debian" "$place/rust"
    cp /etc/resolv.conf "$place/rust/etc/resolv.conf"
    mkdir -p "$place/rust/var/cache/apt/archives/partial" "$place/rust/var/lib/apt/lists"
    chroot "$place/rust" sh -c 'apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev ca-certificates' \
        >"$place/apt.log" 2>&1
    cp --archive "$(rustc --print sysroot)"/{bin,lib} "$place/rust/usr/local/"
    import_image "$place/rust" "$builder"
    rm -rf "$place/rust"
}

started=$SECONDS
begun=${EPOCHREALTIME/./}
if [ -n "$archive" ]; then
    case $engine in
    docker) docker tag "$(docker load --quiet --input "$archive" | sed -n 's/^Loaded image: //p')" $image ;;
    buildah) build tag "$(build pull --quiet "oci-archive:$archive")" "localhost/$image" ;;
    esac
else
    say "building; $place/build.log has the output"
    case $engine in
    docker) docker build --tag $image . >"$place/build.log" 2>&1 ;;
    buildah)
        make_base
        make_builder
        cargo fetch --locked --quiet
        build bud --isolation chroot --network host --pull-never --format docker --tag $image \
            --volume "${CARGO_HOME:-$HOME/.cargo}/registry:/root/.cargo/registry" . >"$place/build.log" 2>&1
        ;;
    esac || { tail -30 "$place/build.log"; fail "the build failed"; }
    say "built in $((SECONDS - started)) s"
fi

# The volume: named for docker, a directory for buildah, with the owner and mode of the image's own.
service=
case $engine in
docker)
    volume=cuckood-test-$$
    cleanup() {
        docker rm --force $image >/dev/null 2>&1 || true
        docker volume rm --force "$volume" >/dev/null
    }
    ;;
buildah)
    container=$(build from --pull-never "localhost/$image")
    volume=$(mktemp -d)
    root=$(build mount "$container")
    chown --reference "$root/data" "$volume" && chmod --reference "$root/data" "$volume"
    cleanup() {
        pkill -KILL -u 10001 -x cuckood || true
        build rm "$container" >/dev/null 2>&1 || true
        rm -rf "$volume"
    }
    ;;
esac
log=$(mktemp)
trap 'cleanup; rm -f "$log"' EXIT

# start [VARIABLE=VALUE…]: runs the image's entrypoint over the volume.
start() {
    local variables=(--env "CUCKOOD__SERVER__LISTEN=0.0.0.0:$port") variable
    for variable in "$@"; do variables+=(--env "$variable"); done
    case $engine in
    docker) docker run --rm --name $image --publish "127.0.0.1:$port:$port" --volume "$volume:/data" "${variables[@]}" $image ;;
    # Its `run` takes a command instead of the entrypoint.
    buildah) build run --isolation chroot --volume "$volume:/data" "${variables[@]}" "$container" -- "${entrypoint[@]}" ;;
    esac >"$log" 2>&1 &
    service=$!
}

# inside COMMAND…: runs a command next to the service, as the image's user.
inside() {
    case $engine in
    docker) docker exec $image "$@" ;;
    buildah) build run --isolation chroot --volume "$volume:/data" --env "CUCKOOD__SERVER__LISTEN=0.0.0.0:$port" "$container" -- "$@" ;;
    esac
}

terminate() {
    case $engine in
    docker) docker kill --signal "$stop_signal" $image >/dev/null ;;
    buildah) pkill "-$stop_signal" -u "$user" -x cuckood ;;
    esac
}

# configured PATH: a field of the image's configuration, as lines.
configured() {
    case $engine in
    docker) docker image inspect $image ;;
    buildah) build inspect --type image "localhost/$image" ;;
    esac | python3 -c '
import json, sys
found = json.load(sys.stdin)
found = found[0]["Config"] if isinstance(found, list) else found["Docker"]["config"]
for name in sys.argv[1].split("."):
    found = found.get(name) or {}
print("\n".join(found) if isinstance(found, (list, dict)) else found)' "$1"
}
mapfile -t entrypoint < <(configured Entrypoint)
mapfile -t healthcheck < <(configured Healthcheck.Test)
# OCI images have none.
[ -z "$archive" ] || healthcheck=(CMD cuckood healthcheck)
user=$(configured User) user=${user%%:*} stop_signal=$(configured StopSignal)

until_ready() {
    for _ in $(seq 300); do
        ! curl --silent --fail "$url/readyz" >/dev/null || return 0
        kill -0 "$service" 2>/dev/null || { cat "$log"; fail "the service exited"; }
        sleep 0.1
    done
    cat "$log"
    fail "the service is not ready"
}

# status WANTED CURL-ARGUMENTS…
status() {
    local wanted=$1 found
    found=$(curl --silent --output /dev/null --write-out '%{http_code}' "${@:2}")
    [ "$found" = "$wanted" ] || fail "expected status $wanted, got $found: ${*:2}"
}

say "it has a user, a volume, a health check and SIGTERM"
[ "$user" = 10001 ] || fail "the image's user is $user"
[ "$(configured Volumes)" = /data ] || fail "the image's volume is $(configured Volumes)"
[ "$stop_signal" = SIGTERM ] || fail "the image's signal is $stop_signal"

say "without keys it does not start"
start
! wait "$service" || fail "it served without keys"
grep --quiet 'auth.keys' "$log" || { cat "$log"; fail "the message does not name auth.keys"; }

say "with a key it serves, as its user, over the volume"
key=container-test
sha256=$(printf %s "$key" | sha256sum | cut -d' ' -f1)
keys="CUCKOOD__AUTH__KEYS=[{name=\"admin\", sha256=\"$sha256\", scopes=[\"admin\"]}]"
authorized=(--header "Authorization: Bearer $key" --header 'Content-Type: application/json')
start "$keys"
until_ready
status 401 "$url/v1/campaigns"
status 201 "${authorized[@]}" --request PUT "$url/v1/campaigns/spring" --data '{"capacity":1000}'
status 200 "${authorized[@]}" "$url/v1/campaigns/spring/users" --data '{"users":["u1"]}'
[ -z "$archive" ] || say "${archive##*/}: first write $(((${EPOCHREALTIME/./} - begun) / 1000)) ms after loading began"
[ "$(inside id -u)" = 10001 ] || fail "commands run as $(inside id -u)"
[ "$(inside stat -c '%u %a' /data/cuckood)" = "10001 700" ] || fail "the data have $(inside stat -c '%u %a' /data/cuckood)"
inside "${healthcheck[@]:1}" || fail "the health check failed"

say "SIGTERM drains it"
terminate
until curl --silent "$url/readyz" | grep --quiet draining; do kill -0 "$service" 2>/dev/null || fail "it did not drain"; done
code=0
wait "$service" || code=$?
[ "$code" = 0 ] || { cat "$log"; fail "it exited with status $code"; }

say "a second start has the data"
start "$keys"
until_ready
curl --silent --fail "${authorized[@]}" "$url/v1/campaigns/spring/users/check" --data '{"users":["u1"]}' | grep --quiet true ||
    fail "the data are lost"
terminate
wait "$service" || fail "the second service failed"

case $engine in
docker) size=$(docker image inspect --format '{{.Size}}' $image) ;;
buildah) size=$(du --bytes --summarize "$root" | cut -f1) ;;
esac
say "ok: $((size / 1000000)) MB"
