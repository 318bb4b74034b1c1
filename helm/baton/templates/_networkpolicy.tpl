{{/* Parts of network policies. A connection needs its edge twice: egress of who dials, ingress of who
is dialled. Names are resolved by all: default-networkpolicy.yaml. */}}

{{/* metadata, podSelector and policyTypes of a component: (dict "root" $ "component" NAME). */}}
{{- define "baton.policy.head" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "baton.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- end -}}

{{/* Peers: (dict "root" $ "components" (list NAME...)). */}}
{{- define "baton.policy.pods" -}}
{{- range .components }}
- podSelector:
    matchLabels:
      {{- include "baton.selector" (dict "root" $.root "component" .) | nindent 6 }}
{{- end }}
{{- end -}}

{{/* Peers of the values, empty where they name none: LIST. */}}
{{- define "baton.policy.peers" -}}
{{- with . -}}{{ toYaml . }}{{- end -}}
{{- end -}}

{{/* A rule: (dict "side" "from" or "to" "peers" LIST-AS-YAML "ports" LIST). No peers: anyone. */}}
{{- define "baton.policy.rule" -}}
- ports:
    {{- range .ports }}
    - protocol: TCP
      port: {{ . }}
    {{- end }}
  {{- with trim (.peers | default "") }}
  {{ $.side }}:
    {{- . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* The rule for who fetches metrics: (dict "root" $ "ports" LIST). */}}
{{- define "baton.policy.metrics" -}}
{{- with .root.Values.networkPolicy.metricsClients -}}
{{ include "baton.policy.rule" (dict "side" "from" "peers" (toYaml .) "ports" $.ports) }}
{{- end -}}
{{- end -}}

{{/* Egress to Redis. */}}
{{- define "baton.policy.redis" -}}
{{- if .Values.redis.enabled -}}
{{ include "baton.policy.rule" (dict "side" "to" "peers" (include "baton.policy.pods" (dict "root" . "components" (list "redis"))) "ports" (list 6379)) }}
{{- else -}}
{{- $redis := .Values.networkPolicy.redis -}}
{{ include "baton.policy.rule" (dict "side" "to" "peers" (include "baton.policy.peers" $redis.peers) "ports" (list $redis.port)) }}
{{- end -}}
{{- end -}}

{{/* Egress to the collector of traces, if there is one. */}}
{{- define "baton.policy.otlp" -}}
{{- with .Values.tracing.otlpEndpoint -}}
{{ include "baton.policy.rule" (dict "side" "to" "peers" (include "baton.policy.peers" $.Values.networkPolicy.otlp.peers) "ports" (list (regexFind "[0-9]+$" .))) }}
{{- end -}}
{{- end -}}

{{/* Egress of who downloads the model. */}}
{{- define "baton.policy.download" -}}
{{- $model := include "baton.model" . | fromJson -}}
{{- $store := .Values.networkPolicy.objectStore -}}
{{- if eq $model.kind "download" -}}
{{ include "baton.policy.rule" (dict "side" "to" "peers" (include "baton.policy.peers" $store.peers) "ports" (list $store.port)) }}
{{- if and (ne $model.scheme "https") (not .Values.model.download.credentialsSecret) }}
{{- $identity := .Values.networkPolicy.workloadIdentity -}}
{{- with $identity.peers }}
{{ include "baton.policy.rule" (dict "side" "to" "peers" (toYaml .) "ports" $identity.ports) }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Peers that have a transfer service: workers' pods, or the DaemonSet's, whose port is the node's. */}}
{{- define "baton.policy.transfers" -}}
{{- if eq .Values.transfer.mode "sidecar" -}}
{{ include "baton.policy.pods" (dict "root" . "components" (list "prefill" "decode")) }}
{{- else -}}
{{ include "baton.policy.pods" (dict "root" . "components" (list "transfer")) }}
{{- range .Values.networkPolicy.nodeCidrs }}
- ipBlock:
    cidr: {{ . }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Egress to transfer services; where NIXL may carry KV, between them at any port: "anyPort". */}}
{{- define "baton.policy.toTransfers" -}}
{{- if and .anyPort (include "baton.transfer.nixl" .root) -}}
- to:
    {{- include "baton.policy.transfers" .root | trim | nindent 4 }}
{{- else -}}
{{ include "baton.policy.rule" (dict "side" "to" "peers" (include "baton.policy.transfers" .root) "ports" (list 7610)) }}
{{- end -}}
{{- end -}}

{{/* Ingress of transfer services: routers renew leases and follow what is cached, workers and peers read. */}}
{{- define "baton.policy.fromTransferClients" -}}
{{- $clients := include "baton.policy.pods" (dict "root" . "components" (list "router" "prefill" "decode")) -}}
{{- if ne .Values.transfer.mode "sidecar" -}}
{{- $clients = printf "%s\n%s" $clients (include "baton.policy.transfers" .) -}}
{{- end -}}
{{ include "baton.policy.rule" (dict "side" "from" "peers" $clients "ports" (list 7610)) }}
{{- if include "baton.transfer.nixl" . }}
- from:
    {{- include "baton.policy.transfers" . | trim | nindent 4 }}
{{- end }}
{{- end -}}

{{/* The policy of a pool of workers: (dict "root" $ "component" NAME). */}}
{{- define "baton.policy.worker" -}}
{{- $sidecar := eq .root.Values.transfer.mode "sidecar" -}}
{{ include "baton.policy.head" . }}
  ingress:
    {{- include "baton.policy.rule" (dict "side" "from" "peers" (include "baton.policy.pods" (dict "root" .root "components" (list "router"))) "ports" (list 7601)) | nindent 4 }}
    {{- if $sidecar }}
    {{- include "baton.policy.fromTransferClients" .root | nindent 4 }}
    {{- end }}
    {{- with include "baton.policy.metrics" (dict "root" .root "ports" ($sidecar | ternary (list 9100 9101) (list 9100))) }}
    {{- . | nindent 4 }}
    {{- end }}
  egress:
    {{- include "baton.policy.redis" .root | nindent 4 }}
    {{- include "baton.policy.toTransfers" (dict "root" .root "anyPort" $sidecar) | nindent 4 }}
    {{- with include "baton.policy.otlp" .root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with include "baton.policy.download" .root }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}
