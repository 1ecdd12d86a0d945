{{- define "cuckood.name" -}}
{{- $name := .Release.Name }}
{{- if not (contains .Chart.Name .Release.Name) }}
{{- $name = printf "%s-%s" .Release.Name .Chart.Name }}
{{- end }}
{{- /* Names of services and pods have at most 63 letters, and suffixes are appended to this one. */ -}}
{{- $name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "cuckood.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cuckood.labels" -}}
{{ include "cuckood.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "cuckood.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The name of the pods' service account; empty for the namespace's default one. */ -}}
{{- define "cuckood.serviceAccount" -}}
{{- $created := "" }}
{{- if .Values.serviceAccount.create }}{{ $created = include "cuckood.name" . }}{{ end }}
{{- .Values.serviceAccount.name | default $created }}
{{- end }}

{{- define "cuckood.scheme" -}}
{{ if .Values.tls.existingSecret }}https{{ else }}http{{ end }}
{{- end }}

{{- /* An attacker who breaks out of the program has no privileges, and no writable files outside the volumes. */ -}}
{{- define "cuckood.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "cuckood.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* The Secret with the credentials of the nodes for the NATS servers; empty for none. */ -}}
{{- define "cuckood.natsSecret" -}}
{{- if .Values.cluster.enabled }}{{ .Values.cluster.nats.existingSecret }}{{ end }}
{{- end }}

{{- /* `affinity`; without it, several nodes run on separate machines. */ -}}
{{- define "cuckood.affinity" -}}
{{- $spread := .Values.cluster.spread }}
{{- if .Values.affinity }}
{{- toYaml .Values.affinity }}
{{- else if and .Values.cluster.enabled (ne $spread "none") }}
podAntiAffinity:
  {{- if eq $spread "required" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "cuckood.selector" . | nindent 10 }}
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "cuckood.selector" . | nindent 12 }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* The ports of the NATS servers, as a list of rules; 4222 if an address has none. */ -}}
{{- define "cuckood.natsPorts" -}}
{{- $ports := list }}
{{- range .Values.cluster.nats.servers }}
{{- $ports = append $ports (regexFind ":[0-9]+$" . | default ":4222" | trimPrefix ":") }}
{{- end }}
{{- range $ports | uniq }}
- port: {{ . }}
{{- end }}
{{- end }}
