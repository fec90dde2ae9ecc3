{{/*
What a gateway may do. Plans are ConfigMaps with a label; RBAC knows no labels, so it may read others too.
*/}}
{{- define "omnistage.gateway.rules" -}}
- apiGroups: [omnistage.io]
  resources: [inferencepipelines]
  verbs: [get, list, watch]
- apiGroups: [omnistage.io]
  resources: [inferencepipelines/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
{{- end }}
