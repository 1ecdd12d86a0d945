#!/usr/bin/env bash
# Makes the files of a package that are neither the program nor files of the repository: manual pages, completions, notices, and the
# documents with their links adjusted. The program is this script's argument.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "$1")
place=target/package
mkdir -p "$place"

rm -rf "$place/man"
"$program" man "$place/man"
"$program" completions bash >"$place/cuckood.bash"
"$program" completions fish >"$place/cuckood.fish"
"$program" completions zsh >"$place/_cuckood"
# Without a time, so that the same sources make the same package.
deploy/third-party.py | gzip --best --no-name >"$place/THIRD-PARTY.gz"

rm -rf "$place/documents"
tools/dist/documents.py "$place/documents" config.toml=examples/config.toml deploy/prometheus/alerts.yml=examples/alerts.yml \
    deploy/grafana/cuckood.json=examples/cuckood.json
