{{- define "keygate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "keygate.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 55 | trimSuffix "-" }}
{{- else if contains (include "keygate.name" .) .Release.Name }}
{{- .Release.Name | trunc 55 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "keygate.name" .) | trunc 55 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "keygate.selector" -}}
app.kubernetes.io/name: {{ include "keygate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "keygate.labels" -}}
{{ include "keygate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "keygate.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "keygate.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "keygate.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- /* The port for metrics. */ -}}
{{- define "keygate.metricsPort" -}}
{{- with .Values.admin }}{{ if .readers.secret }}readers{{ else }}admin{{ end }}{{ end }}
{{- end }}

{{- /* How a monitor scrapes the port for metrics. */ -}}
{{- define "keygate.endpoint" -}}
port: {{ include "keygate.metricsPort" .root }}
path: /metrics
interval: {{ .interval }}
{{- with .root.Values.admin.readers }}
{{- if .secret }}
scheme: https
{{- with .tlsConfig }}
tlsConfig: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* One of the two containers that fetch files: "arguments" follow the configuration. */ -}}
{{- define "keygate.fetchContainer" -}}
{{- $values := .root.Values -}}
image: {{ include "keygate.image" .root | quote }}
imagePullPolicy: {{ $values.image.pullPolicy }}
args: {{ concat (list "fetch" "--config" "/etc/keygate/keygate.toml") .arguments | toJson }}
{{- with $values.extraEnv }}
env: {{ toYaml . | nindent 2 }}
{{- end }}
resources: {{ toYaml $values.filter.resources | nindent 2 }}
securityContext: {{ toYaml $values.securityContext | nindent 2 }}
# Neither certificates nor keys.
volumeMounts:
  - name: config
    mountPath: /etc/keygate
    readOnly: true
  - name: filters
    mountPath: /filters
  {{- range $index, $name := $values.configMaps }}
  - name: list-{{ $index }}
    mountPath: /lists/{{ $name }}
    readOnly: true
  {{- end }}
{{- end }}
