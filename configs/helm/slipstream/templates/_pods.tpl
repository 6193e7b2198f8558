{{/* What pods of head and workers have in common. */}}
{{- define "slipstream.podCommon" -}}
serviceAccountName: {{ include "slipstream.serviceAccount" . }}
terminationGracePeriodSeconds: {{ include "slipstream.terminationSeconds" . }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "slipstream.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: run, mountPath: /run/slipstream}
- {name: cache, mountPath: /var/cache/slipstream}
- {name: state, mountPath: /var/lib/slipstream}
{{- if .Values.modelVolume.enabled }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- if .Values.tls.workers.secret }}
- {name: worker-tls, mountPath: /etc/slipstream-worker-tls, readOnly: true}
{{- end }}
{{- end -}}

{{/* The root file system is read-only: all that is written goes here. */}}
{{- define "slipstream.volumes" -}}
- {name: tmp, emptyDir: {}}
- {name: run, emptyDir: {}}
- {name: state, emptyDir: {}}
{{- if .Values.cache.hostPath }}
- {name: cache, hostPath: {path: {{ .Values.cache.hostPath }}, type: DirectoryOrCreate}}
{{- else }}
- {name: cache, emptyDir: {sizeLimit: {{ .Values.cache.sizeLimit }}}}
{{- end }}
{{- if .Values.modelVolume.enabled }}
- {name: models, persistentVolumeClaim: {claimName: {{ .Values.modelVolume.claimName }}, readOnly: true}}
{{- end }}
{{- with .Values.tls.workers.secret }}
- {name: worker-tls, secret: {secretName: {{ . }}}}
{{- end }}
{{- end -}}

{{- define "slipstream.env" -}}
- {name: HOME, value: /var/lib/slipstream}
- {name: XDG_RUNTIME_DIR, value: /run}
- {name: XDG_CACHE_HOME, value: /var/cache}
- {name: XDG_STATE_HOME, value: /var/lib}
{{- if eq .Values.runtime "leaderWorkerSet" }}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "slipstream.rayTokenSecret" . }}, key: auth_token}}
{{- end }}
{{- end -}}

{{- define "slipstream.envFrom" -}}
{{- if .Values.credentialsSecret }}
envFrom:
  - secretRef: {name: {{ .Values.credentialsSecret }}}
{{- end }}
{{- end -}}

{{/* The head: router, driver, and Ray's own services. */}}
{{- define "slipstream.headTemplate" -}}
metadata:
  labels: {{- include "slipstream.headSelector" . | nindent 4 }}
  annotations:
    checksum/config: {{ include "slipstream.config" . | sha256sum }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  {{- include "slipstream.podCommon" . | nindent 2 }}
  # Ray's autoscaler, which KubeRay puts beside the head, asks Kubernetes for pods.
  automountServiceAccountToken: {{ and (eq .Values.runtime "kuberay") (eq .Values.autoscaling.kind "ray") }}
  {{- with .Values.head.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.head.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.head.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: ray-head
      image: {{ include "slipstream.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      securityContext: {{- toYaml .Values.containerSecurityContext | nindent 8 }}
      {{- if eq .Values.runtime "leaderWorkerSet" }}
      command: [sh, -ec]
      args:
        - |
          ray start --head --port=6379 --dashboard-host=0.0.0.0 --num-gpus=0 --disable-usage-stats
          exec python -m slipstream.cluster.serve /etc/slipstream/slipstream.yaml
      {{- end }}
      ports:
        - {name: gcs, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        - {name: http, containerPort: 8000}
        - {name: admin, containerPort: 8001}
        - {name: admin-api, containerPort: 8002}
        {{- if .Values.repository.enabled }}
        - {name: grpc, containerPort: 8003}
        - {name: triton-metrics, containerPort: 8004}
        {{- end }}
      env:
        {{- include "slipstream.env" . | nindent 8 }}
        - {name: READY_URL, value: "{{ include "slipstream.scheme" . }}://127.0.0.1:8000/health/ready"}
        # A dead host is detected after four failed checks of three seconds instead of a minute.
        - {name: RAY_health_check_period_ms, value: "3000"}
        - {name: RAY_health_check_timeout_ms, value: "3000"}
        - {name: RAY_health_check_failure_threshold, value: "4"}
      {{- include "slipstream.envFrom" . | nindent 6 }}
      resources: {{- toYaml .Values.head.resources | nindent 8 }}
      # Unready at once, but serving until every balancer has noticed; then running requests finish.
      lifecycle:
        preStop:
          exec: {command: [sh, -c, "slipstream down --grace || true"]}
      startupProbe:
        httpGet: {path: /api/gcs_healthz, port: dashboard}
        {{- toYaml .Values.probes.startup | nindent 8 }}
      readinessProbe:
        {{- if eq .Values.runtime "kuberay" }}
        # KubeRay submits the job when this container is ready, so it must be ready before the job has begun.
        exec: {command: [python, /etc/slipstream/ready.py]}
        {{- else }}
        httpGet: {path: /health/ready, port: http, scheme: {{ include "slipstream.scheme" . | upper }}}
        {{- end }}
        {{- toYaml .Values.probes.readiness | nindent 8 }}
      livenessProbe:
        httpGet: {path: /api/gcs_healthz, port: dashboard}
        {{- toYaml .Values.probes.liveness | nindent 8 }}
      volumeMounts:
        {{- include "slipstream.mounts" . | nindent 8 }}
        - {name: shm, mountPath: /dev/shm}
        - {name: config, mountPath: /etc/slipstream, readOnly: true}
        - {name: admin-token, mountPath: /etc/slipstream-admin, readOnly: true}
        {{- if include "slipstream.apiKeysSecret" . }}
        - {name: api-keys, mountPath: /etc/slipstream-keys, readOnly: true}
        {{- end }}
        {{- if .Values.tls.secret }}
        - {name: tls, mountPath: /etc/slipstream-tls, readOnly: true}
        {{- end }}
        {{- if .Values.tls.adminApi.secret }}
        - {name: admin-tls, mountPath: /etc/slipstream-admin-tls, readOnly: true}
        {{- end }}
  volumes:
    {{- include "slipstream.volumes" . | nindent 4 }}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
    - {name: config, configMap: {name: {{ include "slipstream.name" . }}-config}}
    - name: admin-token
      secret:
        secretName: {{ include "slipstream.adminTokenSecret" . }}
        items: [{key: {{ .Values.auth.adminToken.key }}, path: token}]
    {{- with include "slipstream.apiKeysSecret" . }}
    - {name: api-keys, secret: {secretName: {{ . }}}}
    {{- end }}
    {{- with .Values.tls.secret }}
    - {name: tls, secret: {secretName: {{ . }}}}
    {{- end }}
    {{- with .Values.tls.adminApi.secret }}
    - {name: admin-tls, secret: {secretName: {{ . }}}}
    {{- end }}
{{- end -}}

{{/* A pod of a pool: (dict "root" $ "role" "prefill" "pool" .Values.pools.prefill) */}}
{{- define "slipstream.workerTemplate" -}}
{{- $root := .root -}}
{{- $ranks := div (int .pool.tp) (int .pool.hostsPerGroup) -}}
{{- $gpus := dict -}}
{{- if .pool.gpusPerRank -}}
{{- $gpus = dict .pool.gpuResource (toString (mul $ranks (int (ceil .pool.gpusPerRank)))) -}}
{{- end -}}
metadata:
  labels:
    {{- include "slipstream.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
  {{- with $root.Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "slipstream.podCommon" $root | nindent 2 }}
  automountServiceAccountToken: false
  {{- with .pool.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .pool.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .pool.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $root.Values.topologySpread.enabled }}
  # Pods of a pool on several hosts, so that one that dies takes few along.
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: {{ $root.Values.topologySpread.topologyKey }}
      whenUnsatisfiable: {{ $root.Values.topologySpread.whenUnsatisfiable }}
      labelSelector:
        matchLabels:
          {{- include "slipstream.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ .role }}
  {{- end }}
  containers:
    - name: ray-worker
      image: {{ include "slipstream.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      securityContext: {{- toYaml $root.Values.containerSecurityContext | nindent 8 }}
      {{- if eq $root.Values.runtime "leaderWorkerSet" }}
      command: [sh, -ec]
      args:
        - >-
          exec ray start --block --disable-usage-stats --address={{ include "slipstream.name" $root }}-head:6379
          --labels="slipstream/pool={{ .role }},slipstream/group={{ .role }}-$GROUP_INDEX"
      {{- end }}
      env:
        {{- include "slipstream.env" $root | nindent 8 }}
        {{- if eq $root.Values.runtime "leaderWorkerSet" }}
        - name: GROUP_INDEX
          valueFrom: {fieldRef: {fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']"}}
        {{- end }}
      {{- include "slipstream.envFrom" $root | nindent 6 }}
      resources:
        requests: {{- toYaml (merge (deepCopy $gpus) .pool.resources.requests) | nindent 10 }}
        limits: {{- toYaml (merge (deepCopy $gpus) .pool.resources.limits) | nindent 10 }}
      volumeMounts:
        {{- include "slipstream.mounts" $root | nindent 8 }}
        - {name: shm, mountPath: /dev/shm}
  volumes:
    {{- include "slipstream.volumes" $root | nindent 4 }}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .pool.shm }}}}
{{- end -}}
