{{/* The Deployment of a pool of workers: (dict "root" $ "component" "prefill" "values" .Values.prefill). */}}

{{- define "baton.worker.deployment" -}}
{{- $values := .values -}}
{{- $sidecar := eq .root.Values.transfer.mode "sidecar" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
spec:
  {{- if eq (include "baton.workers.owner" .root) "values" }}
  replicas: {{ or (kindIs "string" $values.replicas) (kindIs "invalid" $values.replicas) | ternary 1 $values.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  progressDeadlineSeconds: {{ add (int $values.startupSeconds) 1800 }}
  strategy:
    {{- include "baton.pod.strategy" $values.updateStrategy | nindent 4 }}
  selector:
    matchLabels:
      {{- include "baton.selector" . | nindent 6 }}
  template:
    metadata:
      {{- include "baton.pod.metadata" . | nindent 6 }}
    spec:
      {{- include "baton.pod.spec" . | nindent 6 }}
      # The drain, and half a minute for what ends after it: the last words, the transfer service.
      terminationGracePeriodSeconds: {{ add (int (ceil $values.drainSeconds)) 30 }}
      # The transfer service watches the processes that write to its memory.
      {{- if $sidecar }}
      shareProcessNamespace: true
      {{- else }}
      hostPID: true
      {{- end }}
      {{- $init := include "baton.worker.initContainers" . }}
      {{- with trim $init }}
      initContainers:
        {{- . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          {{- include "baton.worker.container" . | nindent 10 }}
      volumes:
        {{- include "baton.pod.volumes" . | nindent 8 }}
        {{- include "baton.model.volume" .root | nindent 8 }}
        - name: kv
          {{- if $sidecar }}
          emptyDir:
            medium: Memory
            sizeLimit: {{ include "baton.transfer.sharedMib" . }}Mi
          {{- else }}
          hostPath:
            path: {{ .root.Values.transfer.daemonSet.hostPath }}
            type: Directory
          {{- end }}
{{- end -}}

{{/* The download, then the sidecar: it starts before the worker and ends after it. */}}
{{- define "baton.worker.initContainers" -}}
{{ include "baton.model.download" (dict "root" .root) }}
{{- if eq .root.Values.transfer.mode "sidecar" }}
- name: transfer
  restartPolicy: Always
  {{- include "baton.transfer.container" (dict "root" .root "tag" .values.imageTag "metricsPort" 9101 "sharedMib" (include "baton.transfer.sharedMib" .) "directory" (include "baton.worker.segmentDir" .root) "volume" "kv") | nindent 2 }}
  ports:
    - name: transfer
      containerPort: 7610
    - name: transfer-metrics
      containerPort: 9101
  {{- include "baton.probes" (dict "root" .root "port" 7610 "metricsPort" "transfer-metrics" "startupSeconds" 60) | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where workers and transfer service see the shared memory: at the same path. */}}
{{- define "baton.worker.segmentDir" -}}
{{- eq .Values.transfer.mode "sidecar" | ternary "/run/baton/kv" .Values.transfer.daemonSet.hostPath -}}
{{- end -}}

{{- define "baton.worker.container" -}}
{{- $root := .root -}}
{{- $values := .values -}}
{{ include "baton.image" (dict "root" $root "tag" $values.imageTag) }}
command: [python, -m, services.{{ .component }}]
args:
  {{- include "baton.flags" (dict "root" $root "port" 7601 "insecure" (not $root.Values.tls.enabled)) | nindent 2 }}
  - --advertise=$(POD_IP):7601
  - --worker-id=$(POD_NAME)
  - --transfer=$({{ eq $root.Values.transfer.mode "sidecar" | ternary "POD_IP" "HOST_IP" }}):7610
  - --fleet={{ include "baton.fleet" $root }}
  - --model={{ include "baton.model.path" $root }}
  {{- with $root.Values.model.name }}
  - --served-name={{ . }}
  {{- end }}
  - --dtype={{ $root.Values.workers.dtype }}
  - --block-size={{ int $root.Values.workers.blockSize }}
  - --threads={{ int $values.threads }}
  - --kv-bytes={{ mul (int $values.kvMib) 1048576 }}
  - --segment-bytes={{ mul (int $values.segmentMib) 1048576 }}
  - --max-sequences={{ int $values.maxSequences }}
  - --max-step-tokens={{ int $values.maxStepTokens }}
  - --drain-seconds={{ $values.drainSeconds }}
  {{- range $values.extraArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  {{- include "baton.pod.field" (dict "name" "POD_IP" "field" "status.podIP") | nindent 2 }}
  {{- if ne $root.Values.transfer.mode "sidecar" }}
  {{- include "baton.pod.field" (dict "name" "HOST_IP" "field" "status.hostIP") | nindent 2 }}
  {{- end }}
  {{- include "baton.redis.env" $root | nindent 2 }}
  {{- include "baton.pod.env" . | nindent 2 }}
ports:
  - name: grpc
    containerPort: 7601
  - name: metrics
    containerPort: 9100
{{ include "baton.probes" (dict "root" $root "port" 7601 "metricsPort" "metrics" "startupSeconds" $values.startupSeconds) }}
securityContext:
  {{- toYaml $root.Values.securityContext | nindent 2 }}
resources:
  {{- include "baton.worker.resources" $values | nindent 2 }}
volumeMounts:
  {{- include "baton.pod.mounts" . | nindent 2 }}
  {{- include "baton.model.mount" $root | nindent 2 }}
  - name: kv
    mountPath: {{ include "baton.worker.segmentDir" $root }}
{{- end -}}

{{/* The resources of the values, with the GPUs in requests and limits. */}}
{{- define "baton.worker.resources" -}}
{{- $resources := deepCopy (.resources | default dict) -}}
{{- if gt (int .gpu.count) 0 -}}
{{- range $part := list "requests" "limits" -}}
{{- $_ := set $resources $part (merge (dict $.gpu.resource (int $.gpu.count)) (get $resources $part | default dict)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
