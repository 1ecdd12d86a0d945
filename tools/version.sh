#!/usr/bin/env bash
# Sets the version of everything that a release contains: tools/version.sh 0.2.0. tests/project/deploy.rs compares the places.
# With a tag, v0.2.0, checks that it names the version of these sources, and that CHANGELOG.md has its date.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?the new version, such as 0.2.0, or a tag, such as v0.2.0}
old=$(sed -n '0,/^version = "\(.*\)"$/s//\1/p' Cargo.toml)
if [[ $version = v* ]]; then
    [ "$version" = "v$old" ] || { echo "version: the tag is $version, but the sources are $old" >&2; exit 1; }
    grep --quiet "^## $old ([0-9]*-[0-9]*-[0-9]*)$" CHANGELOG.md || { echo "version: CHANGELOG.md has no date for $old" >&2; exit 1; }
    exit
fi
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "version: expected three numbers, such as 0.2.0" >&2; exit 2; }

# set_in FILE FROM TO: replaces the first line that matches.
set_in() { sed -i "0,/$2/s//$3/" "$1" && grep --quiet "$3" "$1"; }
set_in Cargo.toml '^version = ".*"$' "version = \"$version\""
for package in cuckood cuckood-filter cuckood-log cuckood-nats cuckood-state; do
    sed -i "/^name = \"$package\"$/{n;s/^version = .*/version = \"$version\"/}" Cargo.lock
done
set_in clients/python/pyproject.toml '^version = ".*"$' "version = \"$version\""
for package in clients/typescript console; do
    set_in $package/package.json '"version": ".*"' "\"version\": \"$version\""
    # The lock file has it twice: its own, and the package's.
    sed -i "1,10s/\"version\": \".*\"/\"version\": \"$version\"/" $package/package-lock.json
done
set_in deploy/helm/cuckood/Chart.yaml '^version: .*$' "version: $version"
set_in deploy/helm/cuckood/Chart.yaml '^appVersion: .*$' "appVersion: $version"
for page in README.md README.zh-CN.md; do set_in "$page" ' cuckood:[0-9.]*$' " cuckood:$version"; done
set_in openapi/openapi.json "^    \"version\": \"$old\"" "    \"version\": \"$version\""
if [ "$version" != "$old" ]; then
    changelog=$(cat deploy/debian/changelog)
    cat >deploy/debian/changelog <<TEXT
cuckood ($version-1) unstable; urgency=medium

  * CHANGELOG.md lists the changes.

 -- The cuckood authors <authors@cuckood.example>  $(date --rfc-email)

$changelog
TEXT
fi
echo "version: $old -> $version; CHANGELOG.md is yours to write"
