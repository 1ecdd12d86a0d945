#!/usr/bin/env bash
# Installs the packages of package-lock.json: tools/npm-ci.sh [FOLDER]. npm waits five minutes for a registry that does not respond, and
# `--silent` hides which; here it gives up within a minute and names it.
set -euo pipefail
cd "${1:-.}"
limits="--fetch-timeout=20000 --fetch-retries=1 --fetch-retry-mintimeout=2000 --fetch-retry-maxtimeout=2000"
# shellcheck disable=SC2086
npm ci --ignore-scripts --loglevel=error --no-audit --no-fund --no-progress $limits >/dev/null || {
    echo "npm-ci: npm can't install the packages of $PWD from $(npm config get registry 2>/dev/null)" >&2
    exit 1
}
