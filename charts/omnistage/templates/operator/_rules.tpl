{{/*
What the operator may do, no more than it does. It never reads secrets: pods refer to them by name.
To apply an object on the server's side takes `patch`, and `create` when it is not there yet; to own
it in a way that holds its owner's deletion back takes `update` on the owner's finalizers.
*/}}
{{- define "omnistage.operator.rules" -}}
{{- $own := list "create" "delete" "get" "list" "patch" "watch" -}}
- apiGroups: [omnistage.io]
  resources: [inferencepipelines]
  verbs: [get, list, watch]
- apiGroups: [omnistage.io]
  resources: [stages]
  verbs: {{ toJson $own }}
- apiGroups: [omnistage.io]
  resources: [inferencepipelines/status, stages/status]
  verbs: [patch]
- apiGroups: [omnistage.io]
  resources: [inferencepipelines/finalizers, stages/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: {{ toJson $own }}
- apiGroups: [leaderworkerset.x-k8s.io] # where the cluster knows it
  resources: [leaderworkersets]
  verbs: {{ toJson $own }}
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: {{ toJson $own }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: {{ toJson $own }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: {{ toJson $own }}
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: {{ toJson $own }}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io] # what scheduler and kubelet say about pods, and what the operator says
  resources: [events]
  verbs: [create, list, watch]
{{- end }}

{{/* Kinds that belong to the whole cluster. */}}
{{- define "omnistage.operator.cluster-rules" -}}
- apiGroups: [omnistage.io]
  resources: [pipelinetemplates, stageruntimes]
  verbs: [get, list, watch]
{{- end }}

{{/* In its own namespace: the election, and the gateways. */}}
{{- define "omnistage.operator.own-rules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, get, update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
{{- end }}
