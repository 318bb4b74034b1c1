{{/* Where the model comes from, and how a pod gets it. */}}

{{/*
model.source as JSON: kind (claim, image or download), ref (claim or image), path below the mount,
and of downloads scheme, remote (rclone's name of it), url (of https) and file (one, or a directory).
*/}}
{{- define "baton.model" -}}
{{- $source := .Values.model.source -}}
{{- $scheme := regexFind "^[a-z0-9]+" $source -}}
{{- $rest := trimPrefix (printf "%s://" $scheme) $source -}}
{{- $model := dict -}}
{{- if eq $scheme "pvc" -}}
{{- $parts := splitn "/" 2 $rest -}}
{{- $model = dict "kind" "claim" "ref" $parts._0 "path" (trimAll "/" ($parts._1 | default "")) -}}
{{- else if eq $scheme "image" -}}
{{- $parts := splitn "#" 2 $rest -}}
{{- $model = dict "kind" "image" "ref" $parts._0 "path" (trimAll "/" ($parts._1 | default "")) -}}
{{- else -}}
{{- $clean := trimSuffix "/" $rest -}}
{{- $file := hasSuffix ".gguf" $clean -}}
{{- $model = dict "kind" "download" "scheme" $scheme "path" (base $clean) "file" $file -}}
{{- if eq $scheme "https" -}}
{{- $_ := set $model "url" (printf "https://%s/" (dir $clean)) -}}
{{- $_ := set $model "remote" (printf "model:%s" (base $clean)) -}}
{{- else -}}
{{- $_ := set $model "remote" (printf "model:%s" $clean) -}}
{{- end -}}
{{- end -}}
{{- toJson $model -}}
{{- end -}}

{{/* The model as a process is told it. */}}
{{- define "baton.model.path" -}}
{{- $model := include "baton.model" . | fromJson -}}
{{- printf "/models/%s" $model.path | trimSuffix "/" -}}
{{- end -}}

{{- define "baton.model.volume" -}}
{{- $model := include "baton.model" . | fromJson -}}
- name: model
  {{- if eq $model.kind "claim" }}
  persistentVolumeClaim:
    claimName: {{ $model.ref }}
    readOnly: true
  {{- else if eq $model.kind "image" }}
  image:
    reference: {{ $model.ref | quote }}
    pullPolicy: IfNotPresent
  {{- else if .Values.model.download.claim }}
  persistentVolumeClaim:
    claimName: {{ .Values.model.download.claim }}
  {{- else }}
  emptyDir:
    {{- with .Values.model.download.sizeLimit }}
    sizeLimit: {{ . }}
    {{- else }} {}
    {{- end }}
  {{- end }}
{{- end -}}

{{- define "baton.model.mount" -}}
- name: model
  mountPath: /models
  readOnly: true
{{- end -}}

{{/* The init container that downloads, if the model is downloaded; with "textOnly" all but weights:
(dict "root" $ "textOnly" true). */}}
{{- define "baton.model.download" -}}
{{- $model := include "baton.model" .root | fromJson -}}
{{- $download := .root.Values.model.download -}}
{{- if eq $model.kind "download" -}}
- name: download-model
  image: {{ include "baton.imageReference" (dict "image" $download.image "tag" "") | quote }}
  imagePullPolicy: {{ $download.image.pullPolicy }}
  command: [rclone]
  args:
    - {{ $model.file | ternary "copyto" "copy" }}
    - {{ $model.remote | quote }}
    - {{ printf "/models/%s" $model.path | quote }}
    - --config=
    - --retries=5
    - --stats=30s
    - --stats-one-line
    - --log-level=INFO
    {{- if and .textOnly (not $model.file) }}
    {{- range list "*.json" "*.jinja" "*.model" "*.txt" }}
    - --include={{ . }}
    {{- end }}
    {{- end }}
    {{- range $download.extraArgs }}
    - {{ . | quote }}
    {{- end }}
  env:
    {{- include "baton.model.remote" (dict "model" $model "download" $download) | nindent 4 }}
    - name: HOME
      value: /tmp
  {{- with $download.credentialsSecret }}
  envFrom:
    - secretRef:
        name: {{ . }}
  {{- end }}
  securityContext:
    {{- toYaml .root.Values.securityContext | nindent 4 }}
  resources:
    {{- toYaml $download.resources | nindent 4 }}
  volumeMounts:
    - name: model
      mountPath: /models
    - name: tmp
      mountPath: /tmp
{{- end -}}
{{- end -}}

{{/* The settings of rclone's remote named "model". */}}
{{- define "baton.model.remote" -}}
{{- $types := dict "s3" "s3" "gs" "google cloud storage" "https" "http" -}}
- name: RCLONE_CONFIG_MODEL_TYPE
  value: {{ get $types .model.scheme }}
{{- if eq .model.scheme "https" }}
- name: RCLONE_CONFIG_MODEL_URL
  value: {{ .model.url | quote }}
{{- else }}
- name: RCLONE_CONFIG_MODEL_ENV_AUTH
  value: "true"
{{- end }}
{{- if eq .model.scheme "s3" }}
- name: RCLONE_CONFIG_MODEL_PROVIDER
  value: {{ .download.provider | quote }}
{{- with .download.endpoint }}
- name: RCLONE_CONFIG_MODEL_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .download.region }}
- name: RCLONE_CONFIG_MODEL_REGION
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}
