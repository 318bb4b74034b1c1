{{/* Parts of the built-in Redis. */}}

{{- define "baton.redis.server.env" -}}
{{- if .Values.redis.password.existingSecret -}}
{{ include "baton.redis.password" . }}
- name: REDISCLI_AUTH
  value: $(REDIS_PASSWORD)
{{ end -}}
{{- with .Values.redis.extraEnv -}}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{/* A probe that asks it. An answer that is an error ends redis-cli with 0, so the answer counts. */}}
{{- define "baton.redis.ping" -}}
{{- $tls := .Values.tls.enabled | ternary "--tls --cacert /etc/baton/tls/ca.crt --cert /etc/baton/tls/tls.crt --key /etc/baton/tls/tls.key " "" -}}
exec:
  command:
    - sh
    - -c
    - test "$(redis-cli {{ $tls }}ping)" = PONG
{{- end -}}
