#!/usr/bin/env bash
# Checks the format and the lints of all packages.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
cargo clippy --quiet --locked --workspace --all-targets --all-features -- -D warnings
# Licenses and sources of dependencies, where cargo-deny is installed. `make deny` also checks for known vulnerabilities.
! cargo deny --version >/dev/null 2>&1 || cargo deny --locked check bans licenses sources
