{{/* The transfer service: a sidecar of each worker, or a DaemonSet. */}}

{{/* Its container without name, ports, probes: (dict "root" $ "tag" TAG "metricsPort" N "sharedMib" N
"directory" PATH "volume" NAME); TAG as of the image. */}}
{{- define "baton.transfer.container" -}}
{{- $transfer := .root.Values.transfer -}}
{{- $memory := printf "%dMi" (add (int $transfer.memoryMib) (int .sharedMib)) -}}
{{ include "baton.image" (dict "root" .root "tag" .tag) }}
command: [python, -m, services.transfer]
args:
  {{- include "baton.flags" (dict "root" .root "port" 7610 "metricsPort" .metricsPort "insecure" (not .root.Values.tls.enabled)) | nindent 2 }}
  - --segment-dir={{ .directory }}
  - --peer-segment-bytes={{ mul (int $transfer.peerSegmentMib) 1048576 }}
  - --peer-transport={{ $transfer.peerTransport }}
  {{- range $transfer.extraArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  {{- include "baton.pod.env" (dict "values" $transfer) | nindent 2 }}
securityContext:
  {{- toYaml .root.Values.securityContext | nindent 2 }}
resources:
  requests:
    cpu: {{ $transfer.cpu }}
    memory: {{ $memory }}
  limits:
    memory: {{ $memory }}
volumeMounts:
  {{- include "baton.pod.mounts" (dict "root" .root "values" dict) | nindent 2 }}
  - name: {{ .volume }}
    mountPath: {{ .directory }}
{{- end -}}

{{/* Whether NIXL may carry KV, at ports of its own choice: "true" or empty. */}}
{{- define "baton.transfer.nixl" -}}
{{- if and (ne .Values.transfer.peerTransport "grpc") (not .Values.tls.enabled) -}}true{{- end -}}
{{- end -}}

{{/* Shared memory of a worker's pod in MiB: its own segment, that for peers, and room for the file
system's own pages: (dict "root" $ "values" .Values.prefill). */}}
{{- define "baton.transfer.sharedMib" -}}
{{- add (int .values.segmentMib) (int .root.Values.transfer.peerSegmentMib) 16 -}}
{{- end -}}
