#!/usr/bin/env bash
# Tests the alerts, and checks that Prometheus can parse every expression of the dashboard and that systemd accepts the unit.
set -euo pipefail
cd "$(dirname "$0")"
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

python3 - grafana/cuckood.json >"$place/rules.yml" <<'PYTHON'
import json
import sys

panels = json.load(open(sys.argv[1]))["panels"]
expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
print("groups:\n  - name: dashboard\n    rules:")
for number, expression in enumerate(expressions):
    expression = expression.replace("$__rate_interval", "5m").replace("$instance", ".*")
    print(f"      - record: panel_{number}\n        expr: {json.dumps(expression)}")
PYTHON
promtool check rules "$place/rules.yml"
promtool test rules prometheus/tests.yml

# The program need not be installed here.
sed 's#^ExecStart=[^ ]*#ExecStart=/bin/true#' systemd/cuckood.service >"$place/cuckood.service"
systemd-analyze verify "$place/cuckood.service"
