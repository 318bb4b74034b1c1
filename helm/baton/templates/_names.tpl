{{/* Names, labels and images. */}}

{{- define "baton.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* 40 characters at most, so that what is put behind it fits into 63. What is longer ends in a hash
of all of it, so that releases whose names differ at their ends have objects of their own. */}}
{{- define "baton.fullname" -}}
{{- $name := include "baton.name" . -}}
{{- $full := printf "%s-%s" .Release.Name $name -}}
{{- if .Values.fullnameOverride -}}
{{- $full = .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- $full = .Release.Name -}}
{{- end -}}
{{- if gt (len $full) 40 -}}
{{- $full = printf "%s-%s" (trunc 31 $full | trimSuffix "-") (sha256sum $full | trunc 8) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{- define "baton.fleet" -}}
{{- .Values.fleet | default (printf "%s-%s" .Release.Namespace (include "baton.fullname" .)) -}}
{{- end -}}

{{/* Labels that select a component's pods: (dict "root" $ "component" "router"). */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ include "baton.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of an object of a component. */}}
{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/part-of: baton
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of a component's object: (dict "root" $ "component" "router" "suffix" "-headless"),
and "annotations" and "extraLabels" where it has some. */}}
{{- define "baton.metadata" -}}
name: {{ include "baton.fullname" .root }}-{{ .component }}{{ .suffix }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "baton.labels" . | nindent 2 }}
  {{- with .extraLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (dict "image" .Values.image "tag" TAG): TAG where the image has none. */}}
{{- define "baton.imageReference" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .tag }}
{{- end -}}
{{- end -}}

{{/* image and imagePullPolicy of Baton's own containers: (dict "root" $ "tag" TAG). */}}
{{- define "baton.image" -}}
{{- $image := .root.Values.image -}}
{{- if .tag -}}
{{- $image = dict "repository" $image.repository "tag" .tag "digest" "" -}}
{{- end -}}
image: {{ include "baton.imageReference" (dict "image" $image "tag" .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end -}}

{{- define "baton.serviceAccountName" -}}
{{- $account := .Values.serviceAccount -}}
{{- if $account.create -}}
{{- $account.name | default (include "baton.fullname" .) -}}
{{- else -}}
{{- $account.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "baton.planner.serviceAccountName" -}}
{{- $account := .Values.planner.serviceAccount -}}
{{- if $account.create -}}
{{- $account.name | default (printf "%s-planner" (include "baton.fullname" .)) -}}
{{- else -}}
{{- $account.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "baton.tls.secretName" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "baton.fullname" .)) -}}
{{- end -}}

{{- define "baton.https.secretName" -}}
{{- .Values.gateway.https.existingSecret | default (printf "%s-gateway-https" (include "baton.fullname" .)) -}}
{{- end -}}

{{- define "baton.auth.secretName" -}}
{{- .Values.auth.existingSecret | default (printf "%s-auth" (include "baton.fullname" .)) -}}
{{- end -}}

{{/* Who owns the replicas of prefill and decode: "planner" or "values". */}}
{{- define "baton.workers.owner" -}}
{{- if and .Values.planner.enabled (not .Values.planner.dryRun) -}}planner{{- else -}}values{{- end -}}
{{- end -}}
