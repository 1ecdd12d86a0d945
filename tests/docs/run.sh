#!/usr/bin/env bash
# Runs the examples of the documents against fresh services, compares the README with its translation and with PERFORMANCE.
set -euo pipefail
cd "$(dirname "$0")/../.."
# The examples use the clients.
if ! python3 -c 'import cuckood_client' 2>/dev/null || [ ! -d clients/typescript/dist ]; then clients/run.sh; fi
tests/docs/translation.py README.md README.zh-CN.md
tests/docs/performance.py
tests/docs/check.py README.md docs/INTEGRATION.md docs/MOVING_FROM_REDIS.md
