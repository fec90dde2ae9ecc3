{{/*
What every component may reach: names, and the API server. A policy cannot name the API server, which
is no pod: its ports are open to everywhere.
*/}}
{{- define "omnistage.egress" -}}
- ports: # names
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
- ports: # the API server
    {{- range .Values.networkPolicies.apiServerPorts }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end }}

{{/* The pods of every stage that this release may serve. */}}
{{- define "omnistage.stage-pods" -}}
podSelector:
  matchLabels:
    app.kubernetes.io/name: omnistage-stage
namespaceSelector:
  {{- if .Values.watchNamespaces }}
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: In
      values: {{ toJson .Values.watchNamespaces }}
  {{- else }} {}
  {{- end }}
{{- end }}
