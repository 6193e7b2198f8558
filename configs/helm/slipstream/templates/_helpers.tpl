{{/* Names and labels. */}}
{{- define "slipstream.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "slipstream.labels" -}}
app.kubernetes.io/name: {{ default "slipstream" .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* What all pods of a release have, and no others. */}}
{{- define "slipstream.selector" -}}
app.kubernetes.io/name: {{ default "slipstream" .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "slipstream.headSelector" -}}
{{ include "slipstream.selector" . }}
app.kubernetes.io/component: router
{{- end -}}

{{- define "slipstream.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "slipstream.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "slipstream.name" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "slipstream.rayTokenSecret" -}}
{{ default (printf "%s-ray-token" (include "slipstream.name" .)) .Values.auth.rayToken.existingSecret }}
{{- end -}}

{{- define "slipstream.adminTokenSecret" -}}
{{ default (printf "%s-admin-token" (include "slipstream.name" .)) .Values.auth.adminToken.existingSecret }}
{{- end -}}

{{/* "": no keys. */}}
{{- define "slipstream.apiKeysSecret" -}}
{{- if .Values.auth.apiKeys.existingSecret -}}
{{ .Values.auth.apiKeys.existingSecret }}
{{- else if .Values.auth.apiKeys.generate -}}
{{ include "slipstream.name" . }}-api-key
{{- end -}}
{{- end -}}

{{/* The value of a generated secret: what is there stays. */}}
{{- define "slipstream.kept" -}}
{{- $there := lookup "v1" "Secret" .root.Release.Namespace .name -}}
{{- if and $there (index (default dict $there.data) .key) -}}
{{ index $there.data .key | b64dec }}
{{- else -}}
{{ randAlphaNum 48 }}
{{- end -}}
{{- end -}}

{{- define "slipstream.scheme" -}}
{{ ternary "https" "http" (ne .Values.tls.secret "") }}
{{- end -}}

{{- define "slipstream.adminServerName" -}}
{{ default (printf "%s-admin.%s.svc" (include "slipstream.name" .) .Release.Namespace) .Values.tls.adminApi.serverName }}
{{- end -}}

{{/* What values cannot be together. */}}
{{- define "slipstream.check" -}}
{{- if and (not .Values.models) (not .Values.repository.enabled) -}}
{{- fail "models must have an entry, or repository.enabled be true" -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.kind "ray") (ne .Values.runtime "kuberay") -}}
{{- fail "autoscaling.kind ray needs runtime kuberay; with leaderWorkerSet it is keda, hpa or none" -}}
{{- end -}}
{{- if and (has .Values.autoscaling.kind (list "keda" "hpa")) (ne .Values.runtime "leaderWorkerSet") -}}
{{- fail "autoscaling.kind keda and hpa need runtime leaderWorkerSet; with kuberay it is ray or none" -}}
{{- end -}}
{{- range $role, $pool := .Values.pools -}}
{{- if ne (mod (int $pool.tp) (int $pool.hostsPerGroup)) 0 -}}
{{- fail (printf "pools.%s.hostsPerGroup must divide tp, which is %d, got %d" $role (int $pool.tp) (int $pool.hostsPerGroup)) -}}
{{- end -}}
{{- if and (gt (int $pool.hostsPerGroup) 1) (not (kindIs "invalid" $.Values.budget.memoryGib)) -}}
{{- fail (printf "pools.%s.hostsPerGroup must be 1 where there is a budget.memoryGib" $role) -}}
{{- end -}}
{{- if gt (int $pool.replicas) (int $pool.maxGroups) -}}
{{- fail (printf "pools.%s.replicas must be at most maxGroups, which is %d, got %d" $role (int $pool.maxGroups) (int $pool.replicas)) -}}
{{- end -}}
{{- end -}}
{{- $probe := .Values.probes.readiness -}}
{{- if lt (int .Values.drain.graceSeconds) (int (mul $probe.periodSeconds $probe.failureThreshold)) -}}
{{- fail "drain.graceSeconds must be at least probes.readiness.periodSeconds * failureThreshold" -}}
{{- end -}}
{{- end -}}

{{/* How long a pod may take to end. */}}
{{- define "slipstream.terminationSeconds" -}}
{{ add .Values.drain.graceSeconds .Values.drain.timeoutSeconds 20 }}
{{- end -}}
