#!/usr/bin/env bash
# Packs the Helm chart as `helm package` does, and checks the package.
set -euo pipefail
cd "$(dirname "$0")/../.."
chart=$DIST/cuckood-$VERSION.tgz
tools/dist/pack.sh "$chart" deploy/helm cuckood
deploy/helm/check.sh "$chart"
