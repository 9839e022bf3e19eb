{{- define "deepres.labels" -}}
app.kubernetes.io/name: deepres
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "deepres.selector" -}}
app.kubernetes.io/name: deepres
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "deepres.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
