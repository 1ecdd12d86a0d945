#!/usr/bin/env bash
# Runs the examples of the documents against fresh services, and compares the README with its translation.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/docs/translation.py README.md README.zh-CN.md
tests/docs/check.py README.md docs/INTEGRATION.md docs/REDIS.md
