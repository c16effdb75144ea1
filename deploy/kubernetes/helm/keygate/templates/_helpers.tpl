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

{{- /* One of the two containers that bring the filter: "which" is init or refresh. */ -}}
{{- define "keygate.filterContainer" -}}
{{- $filter := .root.Values.filter -}}
image: {{ $filter.image | quote }}
imagePullPolicy: {{ $filter.imagePullPolicy }}
{{- if eq .which "init" }}
command: {{ default (list "/bin/sh" "/scripts/fetch-filter" "once") $filter.initCommand | toJson }}
{{- else }}
command: {{ default (list "/bin/sh" "/scripts/fetch-filter" "forever") $filter.refreshCommand | toJson }}
{{- end }}
env:
  - name: FILTER_URL
    value: {{ required "filter.url: where is the filter?" $filter.url | quote }}
  - name: FILTER_FILE
    value: {{ printf "/filters/%s" $filter.file | quote }}
  - name: FILTER_INTERVAL
    value: {{ $filter.intervalSeconds | int | quote }}
  {{- if $filter.curlConfigSecret }}
  - name: FILTER_CURL_CONFIG
    value: /curl/curlrc
  {{- end }}
resources: {{ toYaml $filter.resources | nindent 2 }}
securityContext: {{ toYaml .root.Values.securityContext | nindent 2 }}
volumeMounts:
  - name: filters
    mountPath: /filters
  - name: scripts
    mountPath: /scripts
    readOnly: true
  {{- if $filter.curlConfigSecret }}
  - name: curl
    mountPath: /curl
    readOnly: true
  {{- end }}
{{- end }}
