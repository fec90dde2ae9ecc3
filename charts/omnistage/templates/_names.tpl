{{/*
Names and labels. Every name starts with the release's, and every name of something that belongs to
the cluster carries its namespace too, so that any number of releases can stand side by side.
A release's name has at most 53 characters; no suffix here is longer than 10.
*/}}

{{/* `name` of a component, such as `omnistage-gateway`: (list $ "gateway"). */}}
{{- define "omnistage.name" -}}
{{- $root := first . -}}
{{ $root.Release.Name }}-{{ last . }}
{{- end }}

{{/* `name` of something that belongs to the cluster: (list $ "operator"). */}}
{{- define "omnistage.cluster-name" -}}
{{- $root := first . -}}
{{ $root.Release.Name }}:{{ $root.Release.Namespace }}:{{ last . }}
{{- end }}

{{/* Labels that select the pods of a component: (list $ "gateway"). They never change. */}}
{{- define "omnistage.selector" -}}
{{- $root := first . -}}
app.kubernetes.io/name: omnistage-{{ last . }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end }}

{{/* Labels of everything that belongs to a component: (list $ "gateway"). */}}
{{- define "omnistage.labels" -}}
{{- $root := first . -}}
{{ include "omnistage.selector" . }}
app.kubernetes.io/part-of: omnistage
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Reference of an image: (list $ .Values.gateway.image). */}}
{{- define "omnistage.image" -}}
{{- $root := first . -}}
{{- $image := last . -}}
{{- $repository := $image.repository -}}
{{- with $root.Values.images.registry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository -}}
{{- end -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default $root.Values.images.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Where clients reach the gateway, as far as the chart can know. */}}
{{- define "omnistage.gateway.url" -}}
{{- $service := printf "%s.%s" (include "omnistage.name" (list . "gateway")) .Release.Namespace -}}
{{ .Values.gateway.url | default (printf "http://%s:%v" $service .Values.gateway.service.port) }}
{{- end }}
