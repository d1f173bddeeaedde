{{- define "lightkeeper.name" -}}
{{- if contains "lightkeeper" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-lightkeeper" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lightkeeper.labels" -}}
app.kubernetes.io/name: lightkeeper
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "lightkeeper.url" -}}
http://{{ include "lightkeeper.name" . }}.{{ .Release.Namespace }}:8470
{{- end }}

{{- define "lightkeeper.image" -}}
image: {{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- /* Of every pod of the chart. */ -}}
{{- define "lightkeeper.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "lightkeeper.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
{{- end }}

{{- /* Away from the ranks where there is room, and soon away from a node that is gone. */ -}}
{{- define "lightkeeper.away" -}}
priorityClassName: {{ include "lightkeeper.name" . }}-control
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          namespaces: [{{ .Values.job.namespace }}]
          labelSelector:
            matchLabels:
              role: rank
tolerations:
  {{- range list "not-ready" "unreachable" }}
  - key: node.kubernetes.io/{{ . }}
    operator: Exists
    effect: NoExecute
    tolerationSeconds: 10
  {{- end }}
{{- end }}

{{- /* A peer of a network policy: the monitor's pods, from the job's namespace. */ -}}
{{- define "lightkeeper.monitorPeer" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .Release.Namespace }}
  podSelector:
    matchLabels:
      app: {{ include "lightkeeper.name" . }}
{{- end }}
