{{/* Flags of the planner, as list items. */}}

{{- define "baton.planner.flags" -}}
{{- $planner := .Values.planner -}}
{{- $full := include "baton.fullname" . -}}
- --scaler=kubernetes
{{- if $planner.dryRun }}
- --dry-run
{{- end }}
- --namespace={{ .Release.Namespace }}
- --prefill-deployment={{ $full }}-prefill
- --decode-deployment={{ $full }}-decode
- --lease={{ $full }}-planner
- --identity=$(POD_NAME)
{{- range $role := list "prefill" "decode" }}
{{- $bounds := get $planner $role }}
{{- $gpus := int (get $.Values $role).gpu.count }}
- --min-{{ $role }}={{ int $bounds.minReplicas }}
- --max-{{ $role }}={{ int $bounds.maxReplicas }}
- --gpus-per-{{ $role }}={{ max 1 $gpus }}
{{- end }}
- --gpu-budget={{ int $planner.gpuBudget }}
- --ttft-target-s={{ .Values.targets.interactive.ttftSeconds }}
- --itl-target-s={{ .Values.targets.interactive.itlSeconds }}
- --attainment={{ $planner.attainment }}
- --headroom={{ $planner.headroom }}
- --react-s={{ $planner.reactSeconds }}
- --period-s={{ $planner.periodSeconds }}
- --season-s={{ $planner.seasonSeconds }}
- --cold-start-s={{ $planner.coldStartSeconds }}
- --scale-down-after-s={{ $planner.scaleDownAfterSeconds }}
{{- end -}}
