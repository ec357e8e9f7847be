{{/* Lines of a .properties file. As JSON, large numbers have no exponent. */}}
{{- define "tieredstore.properties" -}}
{{- range $name, $value := . }}
{{ $name }}={{ if kindIs "string" $value }}{{ $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end }}

{{/* Labels of everything that the chart makes. */}}
{{- define "tieredstore.labels" -}}
app.kubernetes.io/name: tieredstore
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What every container may do, without its user. */}}
{{- define "tieredstore.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Environment from the Secret, if there is one. */}}
{{- define "tieredstore.environment" -}}
{{- if .Values.credentialsSecret }}
envFrom:
  - secretRef:
      name: {{ .Values.credentialsSecret }}
{{- end }}
{{- end }}

{{/* The container of the uploader. */}}
{{- define "tieredstore.uploader" -}}
name: tieredstore-uploader
image: {{ .Values.image.repository }}:{{ .Values.image.tag }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [/bin/sh, -c]
args:
  - >-
    { cat /etc/tieredstore/uploader.properties;
    echo "uploader.log.dirs=$(echo {{ join " " .Values.uploader.logDirs }} | tr ' ' ,)"; } > /tmp/uploader.properties &&
    exec tieredstore uploader --json-logs -c /tmp/uploader.properties
ports:
  - name: tieredstore
    containerPort: 9464
{{- /* No readiness probe: a broker is ready whatever its uploader does. */}}
livenessProbe:
  httpGet:
    path: /healthz
    port: 9464
  periodSeconds: 30
  failureThreshold: 4
resources:
  {{- toYaml .Values.uploader.resources | nindent 2 }}
securityContext:
  runAsUser: {{ .Values.uploader.runAsUser }}
  {{- include "tieredstore.security" . | nindent 2 }}
volumeMounts:
  - name: tieredstore-settings
    mountPath: /etc/tieredstore
    readOnly: true
  - name: tieredstore-scratch
    mountPath: /tmp
  {{- range .Values.uploader.logVolumes }}
  - name: {{ .name }}
    mountPath: {{ .mountPath }}
    readOnly: {{ not (hasKey $.Values.uploader.settings "uploader.hold.dir") }}
  {{- end }}
{{- include "tieredstore.environment" . }}
{{- end }}

{{/* A value of YAML as an expression of CEL; `path` is the name of its type below Object. */}}
{{- define "tieredstore.cel" -}}
{{- $path := .path }}
{{- if kindIs "map" .value }}
{{- $isFree := has (last (splitList "." $path)) (list "requests" "limits") -}}
{{ if not $isFree }}{{ $path }}{{ end }}{
{{- range $name, $value := .value }}{{ if $isFree }}{{ $name | quote }}{{ else }}{{ $name }}{{ end }}: {{ include "tieredstore.cel" (dict "path" (printf "%s.%s" $path $name) "value" $value) }}, {{ end -}}
}
{{- else if kindIs "slice" .value -}}
[{{ range .value }}{{ include "tieredstore.cel" (dict "path" $path "value" .) }}, {{ end }}]
{{- else if kindIs "float64" .value -}}
{{ int64 .value }}
{{- else -}}
{{ toJson .value }}
{{- end }}
{{- end }}
