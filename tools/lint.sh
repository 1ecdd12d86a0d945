#!/usr/bin/env bash
# Checks the format and the lints of all packages. `tools/lint.sh openapi` checks the OpenAPI document instead; it takes npm.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = openapi ]; then
    npm exec --yes --package=@redocly/cli -- redocly lint --extends=recommended openapi/openapi.json
    exec npm exec --yes --package=@stoplight/spectral-cli -- spectral lint --ruleset openapi/spectral.yaml openapi/openapi.json
fi
cargo fmt --all --check
cargo clippy --quiet --locked --workspace --all-targets --all-features -- -D warnings
# The filter with Loom's atomics: `make test-long WHAT=loom` runs it.
RUSTFLAGS="--cfg loom -A unused" cargo check --quiet --locked --package cuckood-filter --lib --profile test --target-dir target/loom
# Licenses and sources of dependencies, where cargo-deny is installed. `make deny` also checks for known vulnerabilities.
! cargo deny --version >/dev/null 2>&1 || cargo deny --locked check bans licenses sources
