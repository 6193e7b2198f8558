{{/* The configuration that `slipstream serve` reads: what values say, and above it `config`. */}}
{{- define "slipstream.pool" -}}
{{- $pool := .pool -}}
{{- $made := dict "replicas" (int $pool.replicas) "tp" (int $pool.tp) "labels" (dict "slipstream/pool" .role) -}}
{{- $_ := set $made "num_gpus" $pool.gpusPerRank -}}
{{- if gt (int $pool.hostsPerGroup) 1 -}}
{{- $_ := set $made "hosts_per_group" (int $pool.hostsPerGroup) -}}
{{- $shared := default (ternary "slipstream/group" "" (eq .root.Values.runtime "leaderWorkerSet")) $pool.sharedLabel -}}
{{- if $shared -}}{{- $_ := set $made "hosts_share_label" $shared -}}{{- end -}}
{{- end -}}
{{- toYaml (mergeOverwrite $made (deepCopy $pool.settings)) -}}
{{- end -}}

{{- define "slipstream.adminTls" -}}
cert_file: /etc/slipstream-admin-tls/tls.crt
key_file: /etc/slipstream-admin-tls/tls.key
ca_file: /etc/slipstream-admin-tls/ca.crt
{{- if .Values.tls.adminApi.mutual }}
client_ca_file: /etc/slipstream-admin-tls/ca.crt
{{- end }}
server_name: {{ include "slipstream.adminServerName" . }}
{{- end -}}

{{- define "slipstream.workerTls" -}}
cert_file: /etc/slipstream-worker-tls/tls.crt
key_file: /etc/slipstream-worker-tls/tls.key
ca_file: /etc/slipstream-worker-tls/ca.crt
server_name: {{ default (printf "%s.%s.svc" (include "slipstream.name" .) .Release.Namespace) .Values.tls.workers.serverName }}
{{- end -}}

{{- define "slipstream.config" -}}
{{- $v := .Values -}}
{{- $config := dict "name" "slipstream" "ray" (dict "address" "auto") -}}
{{- $http := dict "host" "0.0.0.0" "port" 8000 -}}
{{- if $v.tls.secret -}}
{{- $_ := set $http "tls" (dict "cert_file" "/etc/slipstream-tls/tls.crt" "key_file" "/etc/slipstream-tls/tls.key") -}}
{{- end -}}
{{- $router := dict "http" $http "admin" (dict "host" "0.0.0.0" "port" 8001) "worker_host" "0.0.0.0" "worker_port" 8010 -}}
{{- if include "slipstream.apiKeysSecret" . -}}
{{- $_ := set $router "access" (dict "keys_file" (printf "/etc/slipstream-keys/%s" $v.auth.apiKeys.key)) -}}
{{- end -}}
{{- if $v.tls.workers.secret -}}
{{- $_ := set $router "worker_tls" (include "slipstream.workerTls" . | fromYaml) -}}
{{- end -}}
{{- $_ := set $config "router" $router -}}
{{- $admin := dict "host" "0.0.0.0" "port" 8002 "token_file" "/etc/slipstream-admin/token" -}}
{{- if $v.tls.adminApi.secret -}}
{{- $_ := set $admin "tls" (include "slipstream.adminTls" . | fromYaml) -}}
{{- end -}}
{{- $_ := set $config "admin_api" $admin -}}
{{- $_ := set $config "kv_transfer" (dict "tls" "all") -}}
{{- $_ := set $config "engine" (mergeOverwrite (dict "device" $v.engine.device "kv_cache_mib" $v.engine.kvCacheMib) (deepCopy $v.engine.settings)) -}}
{{- $prefill := include "slipstream.pool" (dict "root" . "role" "prefill" "pool" $v.pools.prefill) | fromYaml -}}
{{- $decode := include "slipstream.pool" (dict "root" . "role" "decode" "pool" $v.pools.decode) | fromYaml -}}
{{- if eq (len $v.models) 1 -}}
{{- $model := first $v.models -}}
{{- $made := dict "name" $model.name "path" $model.path -}}
{{- if $model.aliases -}}{{- $_ := set $made "aliases" $model.aliases -}}{{- end -}}
{{- $_ := set $config "model" (mergeOverwrite $made (deepCopy (default dict $model.settings))) -}}
{{- $_ := set $config "prefill" $prefill -}}
{{- $_ := set $config "decode" $decode -}}
{{- else if $v.models -}}
{{- $entries := list -}}
{{- range $v.models -}}
{{- $made := dict "name" .name "path" .path "prefill" (deepCopy $prefill) "decode" (deepCopy $decode) -}}
{{- if .aliases -}}{{- $_ := set $made "aliases" .aliases -}}{{- end -}}
{{- $entries = append $entries (mergeOverwrite $made (deepCopy (default dict .settings))) -}}
{{- end -}}
{{- $_ := set $config "models" $entries -}}
{{- end -}}
{{- if $v.repository.enabled -}}
{{- $made := dict "paths" $v.repository.paths "hosts" (int $v.repository.hosts) "instance_port" 8011 -}}
{{- $_ := set $made "grpc" (dict "host" "0.0.0.0" "port" 8003) -}}
{{- $_ := set $made "metrics" (dict "host" "0.0.0.0" "port" 8004) -}}
{{- $_ := set $config "repository" (mergeOverwrite $made (deepCopy $v.repository.settings)) -}}
{{- end -}}
{{- $budget := dict -}}
{{- range $key, $name := dict "workers" "workers" "gpus" "gpus" "memory_gib" "memoryGib" -}}
{{- $value := index $v.budget $name -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $budget $key $value -}}{{- end -}}
{{- end -}}
{{- if $budget -}}{{- $_ := set $config "budget" $budget -}}{{- end -}}
{{- if $v.planner.enabled -}}
{{- $_ := set $config "planner" (mergeOverwrite (dict "enabled" true) (deepCopy $v.planner.settings)) -}}
{{- end -}}
{{- $_ := set $config "startup_timeout_s" (int $v.startupTimeoutSeconds) -}}
{{- $_ := set $config "drain_grace_s" (int $v.drain.graceSeconds) -}}
{{- $_ := set $config "drain_timeout_s" (int $v.drain.timeoutSeconds) -}}
{{- toYaml (mergeOverwrite $config (deepCopy $v.config)) -}}
{{- end -}}
