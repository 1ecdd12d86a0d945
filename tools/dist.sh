#!/usr/bin/env bash
# Builds everything that a release contains into target/artifacts, or the named parts:
#   binary    the program for Linux with glibc 2.17 (2012) or later, x86_64 and aarch64, in an archive with its manual pages
#   deb       Debian packages of these programs
#   clients   Python wheel and source distribution, npm package
#   chart     Helm chart
#   image     container image with the program for x86_64, an OCI archive (buildah)
#   sbom      packages in the program and the console, and those that the clients need (CycloneDX); not the Debian packages of the image
#   check     runs the artifacts, most of them in an empty Debian (root, debootstrap)
#
# deb, image and check take the programs that `binary` built. A part that lacks a tool is not built; the summary names it. With CI=true
# that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
VERSION=$(sed -n '0,/^version = "\(.*\)"$/s//\1/p' Cargo.toml)
# Archives are the same for the same commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
# Cargo has target/dist: the profile of that name.
DIST=$PWD/target/artifacts
PATH=$PWD/target/dist-tools/bin:$PWD/target/tools/bin:$PATH
export VERSION SOURCE_DATE_EPOCH DIST PATH

parts=(binary deb clients chart image sbom check)
[ $# -gt 0 ] || rm -rf "$DIST"
[ $# -eq 0 ] || parts=("$@")
logs=$PWD/target/dist-logs
rm -rf "$logs"
mkdir -p "$DIST" "$logs"

tools/setup.sh
tools/dist/setup.sh | tee "$logs/setup.log"
status=0
for part in "${parts[@]}"; do
    [ -x "tools/dist/$part.sh" ] || { echo "dist: unknown part $part" >&2; exit 2; }
    started=$SECONDS
    if "tools/dist/$part.sh" >"$logs/$part.log" 2>&1 </dev/null; then
        echo "ok       $part, $((SECONDS - started)) s"
        grep '^dist: ' "$logs/$part.log" || true
    else
        status=1
        echo "FAILED   $part, $((SECONDS - started)) s; the end of target/dist-logs/$part.log:"
        tail -n 50 "$logs/$part.log"
    fi
done

cd "$DIST"
find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs -r sha256sum >SHA256SUMS
echo
du --apparent-size --human-readable -- * | sort -k 2
if grep -hs '^NOT BUILT: ' "$logs"/*.log; then
    [ -z "${CI:-}" ] || { echo "CI=true: what was not built is a failure" && status=1; }
fi
exit $status
