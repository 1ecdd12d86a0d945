#!/usr/bin/env bash
# Checks the chart, or the packed one that is this script's argument: `helm lint`, and every manifest that it renders against the
# Kubernetes schemas. HELM names the program; without it, helm.py uses Helm's library.
set -euo pipefail
cd "$(dirname "$0")/../.."
HELM=${HELM:-helm}
VERSION=${KUBERNETES:-1.31}
chart=${1:-deploy/helm/cuckood}
place=target/helm
mkdir -p "$place"

if [ ! -x "$place/venv/bin/kubernetes-validate" ]; then
    python3 -m venv "$place/venv"
    "$place/venv/bin/pip" install --quiet kubernetes-validate==1.37.0 helm-python-sdk==0.2.2
fi
if ! command -v "$HELM" >/dev/null; then
    PATH=$PWD/$place/venv/bin:$PATH HELM=deploy/helm/helm.py
fi

cat >"$place/plain.yaml" <<'YAML'
config: |
  [auth]
  keys = []
YAML
cat >"$place/full.yaml" <<'YAML'
image: {tag: "1", pullSecrets: [{name: registry}]}
existingSecret: settings
tls: {existingSecret: certificate}
redis: {enabled: true}
service: {type: LoadBalancer, annotations: {a: b}}
persistence: {storageClass: fast, size: 100Gi, whenDeleted: Delete}
networkPolicy:
  enabled: true
  from: [{namespaceSelector: {matchLabels: {a: b}}}]
  probesFrom: [{namespaceSelector: {matchLabels: {scrapes: metrics}}}]
serviceMonitor: {enabled: true, labels: {release: prometheus}}
prometheusRule: {enabled: true, labels: {release: prometheus}}
dashboard: {enabled: true}
podAnnotations: {a: b}
podLabels: {team: shop, app.kubernetes.io/name: other}
extraEnv:
  - {name: CUCKOOD__LOG__FORMAT, value: json}
  - {name: CUCKOOD__SERVER__LISTEN, value: "127.0.0.1:1"}
  - {name: PASSWORD, valueFrom: {secretKeyRef: {name: a, key: b}}}
serviceAccount: {create: true, annotations: {a: b}}
ingress:
  enabled: true
  className: nginx
  annotations: {a: b}
  hosts: [{host: a.example, paths: [/v1, /docs]}, {host: b.example, paths: [/]}]
  tls: [{hosts: [a.example], secretName: certificate}]
test: {resources: {limits: {memory: 99Mi}}}
nodeSelector: {disk: ssd}
tolerations: [{key: a, operator: Exists}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: zone, labelSelector: {matchLabels: {a: b}}}}]}}
YAML
cat >"$place/cluster.yaml" <<'YAML'
existingSecret: settings
cluster: {enabled: true, nats: {servers: ["nats://log-nats:4222"]}}
networkPolicy: {enabled: true}
YAML
cat >"$place/cluster-full.yaml" <<'YAML'
existingSecret: settings
cluster:
  enabled: true
  replicas: 5
  spread: required
  nats: {servers: ["tls://a.example", "tls://b.example:14222", "tls://c.example"], stream: shop, replicas: 5, existingSecret: nats}
tls: {existingSecret: certificate}
redis: {enabled: true}
networkPolicy: {enabled: true}
serviceMonitor: {enabled: true}
YAML

for values in plain full cluster cluster-full; do
    "$HELM" lint --strict --values "$place/$values.yaml" "$chart"
    "$HELM" template shop "$chart" --kube-version "$VERSION" --values "$place/$values.yaml" >"$place/$values.rendered.yaml"
    # It warns of the ServiceMonitor, which is none of Kubernetes' own kinds.
    "$place/venv/bin/kubernetes-validate" --strict --kubernetes-version "$VERSION" "$place/$values.rendered.yaml"
done

# rendered FORM WHAT, without FORM WHAT: what a form must have, and what it must not have.
rendered() { grep --quiet --fixed-strings -- "$2" "$place/$1.rendered.yaml" || { echo "helm: $1 has no '$2'"; exit 1; }; }
without() { ! grep --quiet --fixed-strings -- "$2" "$place/$1.rendered.yaml" || { echo "helm: $1 has '$2'"; exit 1; }; }
for values in plain full; do
    rendered $values 'replicas: 1'
    for what in PodDisruptionBudget podManagementPolicy CUCKOOD__CLUSTER__NODE CUCKOOD__JOURNAL__KIND cuckood-nats; do
        without $values "$what"
    done
done
for what in affinity ServiceMonitor PrometheusRule grafana_dashboard 'kind: Ingress' 'kind: ServiceAccount' serviceAccountName; do
    without plain "$what"
done
rendered plain 'memory: 64Mi'
for what in 'memory: 99Mi' 'team: shop' 'kind: ServiceAccount' 'serviceAccountName: shop-cuckood' 'kind: Ingress' \
    'ingressClassName: nginx' 'host: "b.example"' 'path: "/docs"' 'secretName: certificate' 'key: b'; do
    rendered full "$what"
done
# Clients and Prometheus have separate rules.
rules=$(sed -n '/^kind: NetworkPolicy/,/^---/p' "$place/full.rendered.yaml" | grep -oE '(port|a|scrapes): .*' | tr '\n' ' ')
[ "$rules" = 'port: http port: redis a: b port: probes scrapes: metrics ' ] || { echo "helm: full has the rules $rules"; exit 1; }
# Neither the chart's labels nor its addresses can be replaced: of two variables, the last one counts.
without full 'app.kubernetes.io/name: other'
listens=$(grep --after-context=1 'CUCKOOD__SERVER__LISTEN' "$place/full.rendered.yaml" | sed -n 's/.*value: *//p' | tail -1)
[ "$listens" = 0.0.0.0:8080 ] || { echo "helm: extraEnv replaces the address with $listens"; exit 1; }
for what in 'jobLabel: app.kubernetes.io/name' 'alert: CuckoodBackupOld' 'grafana_dashboard: "1"'; do rendered full "$what"; done
for values in cluster cluster-full; do
    for what in PodDisruptionBudget 'podManagementPolicy: Parallel' 'fieldPath: metadata.name' 'clusterIP: None'; do
        rendered $values "$what"
    done
done
rendered cluster 'replicas: 3'
rendered cluster preferredDuringSchedulingIgnoredDuringExecution
rendered cluster 'value: "nats://log-nats:4222"'
rendered cluster '- port: 4222'
without cluster cuckood-nats
rendered cluster-full 'replicas: 5'
rendered cluster-full requiredDuringSchedulingIgnoredDuringExecution
rendered cluster-full 'value: "tls://a.example,tls://b.example:14222,tls://c.example"'
rendered cluster-full '- port: 14222'
rendered cluster-full 'mountPath: /etc/cuckood-nats'

# What must not be installed is refused.
! "$HELM" template shop "$chart" --kube-version "$VERSION" >/dev/null 2>"$place/refused"
grep -q 'beyond loopback the service wants API keys' "$place/refused"
! "$HELM" template shop "$chart" --kube-version "$VERSION" --set config=x,replicas=2 >/dev/null 2>"$place/refused"
grep -q 'replicas' "$place/refused"
! "$HELM" template shop "$chart" --kube-version "$VERSION" --set config=x,cluster.enabled=true >/dev/null 2>"$place/refused"
grep -q 'cluster.nats.servers' "$place/refused"
! "$HELM" template shop "$chart" --kube-version "$VERSION" --set 'config=x,cluster.nats.servers={log:4222}' >/dev/null 2>"$place/refused"
grep -q 'servers' "$place/refused"
! "$HELM" template shop "$chart" --kube-version "$VERSION" --set config=x,ingress.enabled=true >/dev/null 2>"$place/refused"
grep -q 'ingress.hosts' "$place/refused"
