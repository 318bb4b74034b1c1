{{/* What the pods have in common. Each takes (dict "root" $ "component" NAME "values" .Values.NAME). */}}

{{/* metadata of a pod template. Nothing in it changes with the chart alone, which would replace pods. */}}
{{- define "baton.pod.metadata" -}}
labels:
  {{- include "baton.selector" . | nindent 2 }}
  app.kubernetes.io/part-of: baton
  {{- with .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if ne .component "redis" }}
  baton/metrics: "true"
  {{- end }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := merge (dict) (.checksums | default dict) .values.podAnnotations }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Account, security and place of a pod. Links to services are off: their variables begin with the
release's name, and BATON_* are settings. */}}
{{- define "baton.pod.spec" -}}
serviceAccountName: {{ .account | default (include "baton.serviceAccountName" .root) }}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml (.values.podSecurityContext | default .root.Values.podSecurityContext) | nindent 2 }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if hasKey .values "topologySpreadConstraints" }}
topologySpreadConstraints:
  {{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "baton.selector" $ | nindent 8 }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* volumes that every pod of Baton has; scratch space, for the file systems are read-only. */}}
{{- define "baton.pod.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "baton.tls.secretName" .root }}
    defaultMode: 0440
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "baton.pod.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .root.Values.tls.enabled }}
- name: tls
  mountPath: /etc/baton/tls
  readOnly: true
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A variable from the pod's own fields: (dict "name" NAME "field" PATH). */}}
{{- define "baton.pod.field" -}}
- name: {{ .name }}
  valueFrom:
    fieldRef:
      fieldPath: {{ .field }}
{{- end -}}

{{/* Variables of every container of Baton, and the extra ones. */}}
{{- define "baton.pod.env" -}}
{{ include "baton.pod.field" (dict "name" "POD_NAME" "field" "metadata.name") }}
- name: HOME
  value: /tmp
{{- with .values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* spec.strategy of a Deployment: (dict "maxSurge" N "maxUnavailable" N). */}}
{{- define "baton.pod.strategy" -}}
type: RollingUpdate
rollingUpdate:
  maxSurge: {{ .maxSurge }}
  maxUnavailable: {{ .maxUnavailable }}
{{- end -}}

{{/* lifecycle: endpoints learn that the pod ends before it stops taking what is new. */}}
{{- define "baton.pod.preStop" -}}
{{- if gt (int .preStopSeconds) 0 -}}
lifecycle:
  preStop:
    sleep:
      seconds: {{ int .preStopSeconds }}
{{- end -}}
{{- end -}}
