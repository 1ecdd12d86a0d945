#!/usr/bin/env bash
# Checks the format and the lints of all packages.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
cargo clippy --quiet --locked --workspace --all-targets --all-features -- -D warnings
