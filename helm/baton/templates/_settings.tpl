{{/* Flags and variables of the processes. */}}

{{/* Flags of every process, as list items: (dict "root" $ "port" PORT "metricsPort" PORT
"insecure" BOOL). */}}
{{- define "baton.flags" -}}
{{- $values := .root.Values -}}
- --address={{ $values.listenHost }}:{{ .port }}
- --metrics-address={{ $values.listenHost }}:{{ .metricsPort | default 9100 }}
- --process-name=$(POD_NAME)
- --log-level={{ $values.logging.level }}
- --log-format={{ $values.logging.format }}
{{- with $values.tracing.otlpEndpoint }}
- --otlp-endpoint={{ . }}
{{- end }}
- --trace-ratio={{ $values.tracing.ratio }}
{{- if $values.tls.enabled }}
- --tls-cert=/etc/baton/tls/tls.crt
- --tls-key=/etc/baton/tls/tls.key
- --tls-ca=/etc/baton/tls/ca.crt
- --tls-server-name={{ $values.tls.serverName }}
{{- end }}
{{- if .insecure }}
- --insecure
{{- end }}
{{- end -}}

{{- define "baton.redis.host" -}}
{{ include "baton.fullname" . }}-redis.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* BATON_REDIS and what it is made of. */}}
{{- define "baton.redis.env" -}}
{{- $redis := .Values.redis -}}
{{- if $redis.existingSecret -}}
- name: BATON_REDIS
  valueFrom:
    secretKeyRef:
      name: {{ $redis.existingSecret }}
      key: {{ $redis.secretKey }}
{{- else if $redis.url -}}
- name: BATON_REDIS
  value: {{ $redis.url | quote }}
{{- else -}}
{{- $scheme := .Values.tls.enabled | ternary "rediss" "redis" -}}
{{- $login := empty $redis.password.existingSecret | ternary "" ":$(REDIS_PASSWORD)@" -}}
{{- $tls := "?ssl_ca_certs=/etc/baton/tls/ca.crt&ssl_certfile=/etc/baton/tls/tls.crt&ssl_keyfile=/etc/baton/tls/tls.key" -}}
{{- if $redis.password.existingSecret -}}
{{ include "baton.redis.password" . }}
{{ end -}}
- name: BATON_REDIS
  value: {{ printf "%s://%s%s:6379/0%s" $scheme $login (include "baton.redis.host" .) (.Values.tls.enabled | ternary $tls "") | quote }}
{{- end -}}
{{- end -}}

{{- define "baton.redis.password" -}}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.password.existingSecret }}
      key: {{ .Values.redis.password.secretKey }}
{{- end -}}
