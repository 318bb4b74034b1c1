{{/* Parts of the router's Deployment. */}}

{{/* Flags of targets, tenants and limits, as list items. */}}
{{- define "baton.router.flags" -}}
{{- $router := .Values.router -}}
{{- $targets := .Values.targets -}}
- --ttft-interactive-s={{ $targets.interactive.ttftSeconds }}
- --itl-interactive-s={{ $targets.interactive.itlSeconds }}
- --ttft-batch-s={{ $targets.batch.ttftSeconds }}
- --itl-batch-s={{ $targets.batch.itlSeconds }}
- --disaggregation={{ $router.disaggregation }}
{{- with $router.tenantWeights }}
- {{ printf "--tenant-weights=%s" . | quote }}
{{- end }}
{{- with $router.tenantLimits }}
- {{ printf "--tenant-limits=%s" . | quote }}
{{- end }}
- --default-max-tokens={{ int $router.defaultMaxTokens }}
- --max-running={{ int $router.maxRunning }}
- --max-waiting={{ int $router.maxWaiting }}
- --grace-s={{ $router.graceSeconds }}
{{- end -}}

{{- define "baton.router.volumes" -}}
{{- if .Values.auth.enabled -}}
- name: auth
  secret:
    secretName: {{ include "baton.auth.secretName" . }}
    defaultMode: 0440
{{ end -}}
{{- if .Values.model.chatTemplate -}}
- name: config
  configMap:
    name: {{ include "baton.fullname" . }}-router
{{- end -}}
{{- end -}}

{{- define "baton.router.mounts" -}}
{{- if .Values.auth.enabled -}}
- name: auth
  mountPath: /etc/baton/auth
  readOnly: true
{{ end -}}
{{- if .Values.model.chatTemplate -}}
- name: config
  mountPath: /etc/baton/router
  readOnly: true
{{- end -}}
{{- end -}}
