{{/* What contradicts itself is refused, in words. */}}

{{- define "baton.checks" -}}
{{- include "baton.checks.model" . -}}
{{- include "baton.checks.scaling" . -}}
{{- include "baton.checks.security" . -}}
{{- include "baton.checks.reach" . -}}
{{- include "baton.checks.additions" . -}}
{{- end -}}

{{- define "baton.checks.model" -}}
{{- $source := .Values.model.source -}}
{{- if not $source -}}
{{- fail "model.source is empty: say where the model is, such as pvc://CLAIM/PATH, image://REFERENCE#PATH, s3://BUCKET/PATH, gs://BUCKET/PATH or https://HOST/PATH.gguf" -}}
{{- end -}}
{{- if not (regexMatch "^(pvc|image|s3|gs|https)://[^/#]+" $source) -}}
{{- fail (printf "model.source %q is none of pvc://CLAIM/PATH, image://REFERENCE#PATH, s3://BUCKET/PATH, gs://BUCKET/PATH and https://HOST/PATH.gguf" $source) -}}
{{- end -}}
{{- if and (regexMatch "^(s3|gs)://" $source) (not (regexMatch "^[a-z0-9]+://[^/]+/[^/]" $source)) -}}
{{- fail (printf "model.source %q names a bucket, and no path in it" $source) -}}
{{- end -}}
{{- if and (hasPrefix "https://" $source) (not (regexMatch "^https://[^/?]+/[^?]+\\.gguf$" $source)) -}}
{{- fail (printf "model.source %q: over https a model is one file, https://HOST/PATH.gguf, without a query" $source) -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.scaling" -}}
{{- $planned := eq (include "baton.workers.owner" .) "planner" -}}
{{- range $role := list "prefill" "decode" -}}
{{- $replicas := (get $.Values $role).replicas -}}
{{- if and $planned (not (or (kindIs "string" $replicas) (kindIs "invalid" $replicas))) -}}
{{- fail (printf "%s.replicas is %v, but planner.enabled lets the planner own them: leave %s.replicas empty and set planner.%s.minReplicas and maxReplicas, or set planner.dryRun" $role $replicas $role $role) -}}
{{- end -}}
{{- $bounds := get $.Values.planner $role -}}
{{- if gt (int $bounds.minReplicas) (int $bounds.maxReplicas) -}}
{{- fail (printf "planner.%s.minReplicas (%v) is more than its maxReplicas (%v)" $role $bounds.minReplicas $bounds.maxReplicas) -}}
{{- end -}}
{{- end -}}
{{- include "baton.checks.budget" . -}}
{{- range $name := list "gateway" "router" -}}
{{- $component := get $.Values $name -}}
{{- $scaling := $component.autoscaling -}}
{{- if $scaling.enabled -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "%s.autoscaling.minReplicas (%v) is more than its maxReplicas (%v)" $name $scaling.minReplicas $scaling.maxReplicas) -}}
{{- end -}}
{{- if not (dig "requests" "cpu" "" ($component.resources | default dict)) -}}
{{- fail (printf "%s.autoscaling needs %s.resources.requests.cpu: its target is a percentage of that" $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.budget" -}}
{{- $planner := .Values.planner -}}
{{- $budget := int $planner.gpuBudget -}}
{{- $least := add (mul (max 1 (int .Values.prefill.gpu.count)) (int $planner.prefill.minReplicas)) (mul (max 1 (int .Values.decode.gpu.count)) (int $planner.decode.minReplicas)) -}}
{{- if and $planner.enabled (gt $budget 0) (lt $budget (int $least)) -}}
{{- fail (printf "planner.gpuBudget is %d, but the fewest workers that planner.prefill and planner.decode allow need %d" $budget $least) -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.security" -}}
{{- $tls := .Values.tls -}}
{{- if $tls.enabled -}}
{{- include "baton.checks.certificate" (dict "name" "tls" "values" $tls) -}}
{{- if not $tls.serverName -}}
{{- fail "tls.serverName is empty: workers are found at addresses that no certificate names, so all certificates need one name" -}}
{{- end -}}
{{- end -}}
{{- if .Values.gateway.https.enabled -}}
{{- include "baton.checks.certificate" (dict "name" "gateway.https" "values" .Values.gateway.https) -}}
{{- end -}}
{{- $auth := .Values.auth -}}
{{- if and $auth.enabled (not $auth.existingSecret) (not $auth.keys) -}}
{{- fail "auth.enabled needs auth.existingSecret, or the lines of `baton key` in auth.keys" -}}
{{- end -}}
{{- if and $auth.enabled $auth.existingSecret $auth.keys -}}
{{- fail "auth.existingSecret and auth.keys are both set: keys come from one of them" -}}
{{- end -}}
{{- if and $tls.enabled (eq .Values.transfer.peerTransport "nixl") -}}
{{- fail "transfer.peerTransport=nixl moves KV in plain text, and tls.enabled wants all encrypted: use grpc, or auto, which is grpc with TLS" -}}
{{- end -}}
{{- end -}}

{{/* A certificate comes from one place: (dict "name" "tls" "values" .Values.tls). */}}
{{- define "baton.checks.certificate" -}}
{{- $manager := .values.certManager -}}
{{- if and $manager.enabled .values.existingSecret -}}
{{- fail (printf "%s.existingSecret and %s.certManager.enabled are both set: a certificate comes from one of them" .name .name) -}}
{{- end -}}
{{- if and (not $manager.enabled) (not .values.existingSecret) -}}
{{- fail (printf "%s.enabled needs a certificate: %s.existingSecret, or %s.certManager.enabled" .name .name .name) -}}
{{- end -}}
{{- if and $manager.enabled (not (get $manager.issuerRef "name")) -}}
{{- fail (printf "%s.certManager.enabled needs %s.certManager.issuerRef.name: who signs the certificate" .name .name) -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.reach" -}}
{{- $redis := .Values.redis -}}
{{- if and $redis.enabled (or $redis.url $redis.existingSecret) -}}
{{- fail "redis.enabled is the built-in Redis, and redis.url or redis.existingSecret names another one: set redis.enabled=false to use that" -}}
{{- end -}}
{{- if and (not $redis.enabled) (not $redis.url) (not $redis.existingSecret) -}}
{{- fail "redis.enabled=false needs another Redis: redis.url, or redis.existingSecret with the URL" -}}
{{- end -}}
{{- if and $redis.url $redis.existingSecret -}}
{{- fail "redis.url and redis.existingSecret are both set: the URL comes from one of them" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (eq .Values.transfer.mode "daemonSet") (not .Values.networkPolicy.nodeCidrs) -}}
{{- fail "transfer.mode=daemonSet with network policies needs networkPolicy.nodeCidrs: its port is the node's" -}}
{{- end -}}
{{- range $name := list "httpRoute" "grpcRoute" -}}
{{- $route := get $.Values $name -}}
{{- if and $route.enabled (not $route.parentRefs) -}}
{{- fail (printf "%s.enabled needs %s.parentRefs: the Gateways that it belongs to" $name $name) -}}
{{- end -}}
{{- end -}}
{{- range $role := list "prefill" "decode" -}}
{{- $strategy := (get $.Values $role).updateStrategy -}}
{{- if and (eq (toString $strategy.maxSurge) "0") (eq (toString $strategy.maxUnavailable) "0") -}}
{{- fail (printf "%s.updateStrategy: maxSurge and maxUnavailable are both 0, so no pod could ever be replaced" $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is added to pods may not have the name of what is there already. */}}
{{- define "baton.checks.additions" -}}
{{- $labels := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/part-of" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" "baton/metrics" -}}
{{- $variables := list "POD_NAME" "POD_IP" "HOST_IP" "HOME" "BATON_REDIS" "REDIS_PASSWORD" "REDISCLI_AUTH" -}}
{{- $volumes := list "tmp" "tls" "model" "kv" "https" "auth" "config" "data" -}}
{{- include "baton.checks.taken" (dict "what" "commonLabels" "names" (keys (.Values.commonLabels | default dict)) "taken" $labels) -}}
{{- include "baton.checks.taken" (dict "what" "transfer.daemonSet.podLabels" "names" (keys (.Values.transfer.daemonSet.podLabels | default dict)) "taken" (concat $labels (keys (.Values.commonLabels | default dict)))) -}}
{{- include "baton.checks.taken" (dict "what" "transfer.extraEnv" "names" (include "baton.checks.names" .Values.transfer.extraEnv | fromJsonArray) "taken" $variables) -}}
{{- range $name := list "gateway" "router" "prefill" "decode" "redis" "planner" -}}
{{- $values := get $.Values $name -}}
{{- include "baton.checks.taken" (dict "what" (printf "%s.podLabels" $name) "names" (keys ($values.podLabels | default dict)) "taken" (concat $labels (keys ($.Values.commonLabels | default dict)))) -}}
{{- include "baton.checks.taken" (dict "what" (printf "%s.extraEnv" $name) "names" (include "baton.checks.names" $values.extraEnv | fromJsonArray) "taken" $variables) -}}
{{- include "baton.checks.taken" (dict "what" (printf "%s.extraVolumes" $name) "names" (include "baton.checks.names" $values.extraVolumes | fromJsonArray) "taken" $volumes) -}}
{{- end -}}
{{- end -}}

{{/* Names of a list's items, as JSON. */}}
{{- define "baton.checks.names" -}}
{{- $names := list -}}
{{- range . -}}
{{- $names = append $names (.name | default "") -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* (dict "what" VALUE "names" LIST "taken" LIST). */}}
{{- define "baton.checks.taken" -}}
{{- range .names -}}
{{- if has . $.taken -}}
{{- fail (printf "%s sets %s, which the chart sets itself" $.what .) -}}
{{- end -}}
{{- end -}}
{{- if ne (len .names) (len (uniq .names)) -}}
{{- fail (printf "%s has a name twice: %s" .what (join ", " .names)) -}}
{{- end -}}
{{- end -}}
