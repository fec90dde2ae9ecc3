{{/*
Rules for a component, where it watches. With no namespaces named that is the whole cluster: one
ClusterRole. Otherwise each of the namespaces gets a Role, and nothing is granted elsewhere.
(list $ "gateway" "rules-template-name")
*/}}
{{- define "omnistage.access" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $rules := include (index . 2) $root -}}
{{- if $root.Values.watchNamespaces -}}
{{- range $namespace := $root.Values.watchNamespaces }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "omnistage.cluster-name" (list $root $component) }}
  namespace: {{ $namespace }}
  labels:
    {{- include "omnistage.labels" (list $root $component) | nindent 4 }}
rules:
  {{- $rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "omnistage.cluster-name" (list $root $component) }}
  namespace: {{ $namespace }}
  labels:
    {{- include "omnistage.labels" (list $root $component) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "omnistage.cluster-name" (list $root $component) }}
{{ include "omnistage.subject" (list $root $component) }}
{{- end }}
{{- else }}
---
{{ include "omnistage.cluster-access" (list $root $component $component $rules) }}
{{- end }}
{{- end }}

{{/* A ClusterRole bound to a component: (list $ "operator" "name" "rules"). */}}
{{- define "omnistage.cluster-access" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $name := include "omnistage.cluster-name" (list $root (index . 2)) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels:
    {{- include "omnistage.labels" (list $root $component) | nindent 4 }}
rules:
  {{- index . 3 | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "omnistage.labels" (list $root $component) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
{{ include "omnistage.subject" (list $root $component) }}
{{- end }}

{{/* A Role in the release's own namespace, bound to a component: (list $ "operator" "rules"). */}}
{{- define "omnistage.own-access" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "omnistage.name" (list $root $component) }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "omnistage.labels" (list $root $component) | nindent 4 }}
rules:
  {{- index . 2 | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "omnistage.name" (list $root $component) }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "omnistage.labels" (list $root $component) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "omnistage.name" (list $root $component) }}
{{ include "omnistage.subject" (list $root $component) }}
{{- end }}

{{- define "omnistage.subject" -}}
{{- $root := first . -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "omnistage.name" . }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}
