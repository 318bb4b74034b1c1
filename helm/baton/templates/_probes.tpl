{{/* Probes. */}}

{{/*
Of a gRPC server: (dict "root" $ "port" PORT "metricsPort" NAME "startupSeconds" N). Kubernetes' gRPC
probes speak no TLS: with TLS the same state is read from the metrics' server, which is plain HTTP.
*/}}
{{- define "baton.probes" -}}
startupProbe:
  {{- include "baton.probes.ready" . | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ div (add (int .startupSeconds) 4) 5 }}
readinessProbe:
  {{- include "baton.probes.ready" . | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
livenessProbe:
  {{- include "baton.probes.live" . | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{- define "baton.probes.ready" -}}
{{- if .root.Values.tls.enabled -}}
httpGet:
  path: /ready
  port: {{ .metricsPort }}
{{- else -}}
grpc:
  port: {{ .port }}
{{- end -}}
{{- end -}}

{{- define "baton.probes.live" -}}
{{- if .root.Values.tls.enabled -}}
httpGet:
  path: /live
  port: {{ .metricsPort }}
{{- else -}}
grpc:
  port: {{ .port }}
  service: live
{{- end -}}
{{- end -}}

{{/* httpGet of the gateway: (dict "root" $ "path" PATH). */}}
{{- define "baton.gateway.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ .root.Values.gateway.https.enabled | ternary "HTTPS" "HTTP" }}
{{- end -}}
