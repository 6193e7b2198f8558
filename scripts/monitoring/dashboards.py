"""Which dashboards there are, and what their panels show."""

from __future__ import annotations

from collections.abc import Callable

from scripts.monitoring.panels import Dashboard, Panel, Variable, panel, stat

MODEL = Variable("model", "slipstream:workers", "model_name")
WORKER = Variable("worker", "slipstream:worker_credits", "worker")
TENANT = Variable("tenant", "slipstream:tenant_tokens_total", "tenant")
TENSOR_MODEL = Variable("model", "nv_inference_count", "model")
M = 'model_name=~"$model"'
W = f'{M},worker=~"$worker"'
T = 'tenant=~"$tenant"'
N = 'model=~"$model"'
GPU_UTIL_OF_DCGM = 'label_replace(DCGM_FI_DEV_GPU_UTIL, "gpu_uuid", "$1", "UUID", "(.*)") / 100'
WORKER_HAS_GPU = f"(slipstream:worker_gpu_memory_total_bytes{{{W}}} > bool 0)"
WORKER_DCGM = f"{WORKER_HAS_GPU} * on (gpu_uuid) group_left {GPU_UTIL_OF_DCGM}"
NEEDS_NVML = "Where workers have GPUs of NVIDIA and the extra nvml."


def rate(metric: str, matchers: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}{{{matchers}}}[$__rate_interval]))"


def total(metric: str, matchers: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({metric}{{{matchers}}})"


def of_models(
    title: str, unit: str, by: Callable[..., str], *shown: tuple[str, str], red_above: float | None = None
) -> Panel:
    """A line for each model and each metric in `shown`; `by` is `rate` or `total`. A metric has a name in the legend,
    which may be empty."""
    queries = [(by(metric, M, "model_name"), f"{{{{model_name}}}} {name}".rstrip()) for metric, name in shown]
    return panel(title, unit, *queries, red_above=red_above)


def ratio(title: str, unit: str, of: str, to: str) -> Panel:
    """How fast one counter of a model grows for each step of another."""
    return panel(title, unit, (f"{rate(of, M, 'model_name')} / {rate(to, M, 'model_name')}", "{{model_name}}"))


def quantiles(title: str, metric: str) -> Panel:
    buckets = rate(f"{metric}_bucket", M, "model_name", "le")
    shown = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
    queries = [(f"histogram_quantile({share}, {buckets})", f"{{{{model_name}}}} {name}") for share, name in shown]
    return panel(title, "s", *queries)


def of_gpus(title: str, unit: str, what: str) -> Panel:
    return panel(title, unit, (f"slipstream:worker_gpu_{what}{{{W}}}", "{{worker}} rank {{rank}}"), about=NEEDS_NVML)


TTFT = quantiles("Time to first token", "vllm:time_to_first_token_seconds")
ITL = quantiles("Between tokens", "vllm:inter_token_latency_seconds")
TOKENS = of_models(
    "Tokens", "short", rate, ("vllm:prompt_tokens_total", "prompt"), ("vllm:generation_tokens_total", "output")
)
ENDS = panel(
    "Requests by end",
    "reqps",
    (rate("vllm:request_success_total", M, "model_name", "finished_reason"), "{{model_name}} {{finished_reason}}"),
)
LOAD = of_models(
    "Running and waiting",
    "short",
    total,
    ("vllm:num_requests_running", "running"),
    ("vllm:num_requests_waiting", "waiting"),
)
HIT_RATE = ratio(
    "Prompt tokens found in prefix caches",
    "percentunit",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
)
USAGE = panel("KV pages in use", "percentunit", (f"vllm:kv_cache_usage_perc{{{M}}}", "{{model_name}}"), red_above=0.95)
OVERVIEW = Dashboard(
    "overview",
    "overview",
    (MODEL,),
    (
        stat("Workers", "short", f"sum(slipstream:workers{{{M}}})"),
        stat("Requests running", "short", f"sum(vllm:num_requests_running{{{M}}})"),
        stat("Requests waiting", "short", f"sum(vllm:num_requests_waiting{{{M}}})", red_above=100),
        ENDS,
        TTFT,
        ITL,
        TOKENS,
        USAGE,
        HIT_RATE,
        panel("HTTP answers", "reqps", (rate("slipstream:http_responses_total", "", "status"), "{{status}}")),
        panel("Open connections", "short", ("slipstream:http_connections", "")),
        panel("Certificates expire in", "s", ("slipstream:certificate_expiry_timestamp_seconds - time()", "{{port}}")),
        panel(
            "Workers by role",
            "short",
            (total("slipstream:workers", M, "model_name", "role"), "{{model_name}} {{role}}"),
        ),
    ),
)
ONE_MODEL = Dashboard(
    "model",
    "one model",
    (MODEL,),
    (
        TTFT,
        ITL,
        quantiles("Whole requests", "vllm:e2e_request_latency_seconds"),
        quantiles("In the queue", "vllm:request_queue_time_seconds"),
        quantiles("Prefill", "vllm:request_prefill_time_seconds"),
        quantiles("Decode", "vllm:request_decode_time_seconds"),
        ENDS,
        LOAD,
        TOKENS,
        panel("Queue by priority", "short", (total("slipstream:queue_depth", M, "priority"), "{{priority}}")),
        panel("Refused", "reqps", (rate("slipstream:rejections_total", M, "reason"), "{{reason}}")),
        panel("Repeated attempts", "reqps", (rate("slipstream:retries_total", M, "cause"), "{{cause}}")),
        panel("Placements", "reqps", (rate("slipstream:placements_total", M, "reason"), "{{reason}}")),
        panel(
            "Ended requests by version",
            "reqps",
            (rate("slipstream:version_requests_total", M, "version", "outcome"), "{{version}} {{outcome}}"),
        ),
        HIT_RATE,
    ),
)
ONE_WORKER = Dashboard(
    "worker",
    "one worker",
    (MODEL, WORKER),
    (
        panel(
            "KV pages by state",
            "short",
            (total("slipstream:worker_pages", W, "worker", "state"), "{{worker}} {{state}}"),
        ),
        panel("Free slots", "short", (total("slipstream:worker_credits", f'{W},kind="slots"', "worker"), "{{worker}}")),
        panel("Free pages", "short", (total("slipstream:worker_credits", f'{W},kind="pages"', "worker"), "{{worker}}")),
        panel("Tokens computed", "short", (rate("vllm:iteration_tokens_total_sum", W, "worker"), "{{worker}}")),
        panel("Steps", "ops", (rate("slipstream:worker_events_total", f'{W},event="steps"', "worker"), "{{worker}}")),
        panel(
            "Preemptions",
            "ops",
            (rate("slipstream:worker_events_total", f'{W},event="preemptions"', "worker"), "{{worker}}"),
        ),
        panel("Hand-offs under way", "short", (total("slipstream:worker_leases", W, "worker"), "{{worker}}")),
        panel(
            "Processors",
            "short",
            (rate("slipstream:worker_cpu_seconds_total", W, "worker", "rank"), "{{worker}} rank {{rank}}"),
        ),
        panel("Memory", "bytes", (f"slipstream:worker_resident_memory_bytes{{{W}}}", "{{worker}} rank {{rank}}")),
        of_gpus("GPU busy", "percentunit", "utilization"),
        of_gpus("GPU memory in use", "bytes", "memory_used_bytes"),
        of_gpus("GPU power", "watt", "power_watts"),
        of_gpus("GPU temperature", "celsius", "temperature_celsius"),
        panel("GPU busy, by dcgm-exporter", "percentunit", (WORKER_DCGM, "{{worker}} rank {{rank}}"), about=NEEDS_NVML),
        panel("Predicted service times", "s", (f"slipstream:worker_predicted_seconds{{{W}}}", "{{worker}} {{what}}")),
        panel("First tokens, times later than predicted", "short", (f"slipstream:worker_reality{{{W}}}", "{{worker}}")),
    ),
)
TENANTS = Dashboard(
    "tenants",
    "tenants",
    (TENANT,),
    (
        panel("Tokens", "short", (rate("slipstream:tenant_tokens_total", T, "tenant", "kind"), "{{tenant}} {{kind}}")),
        panel(
            "Over a limit",
            "reqps",
            (rate("slipstream:rate_limited_total", T, "tenant", "limit"), "{{tenant}} {{limit}}"),
        ),
        panel("Without a valid key", "reqps", (rate("slipstream:unauthenticated_total", "", "reason"), "{{reason}}")),
        stat("API keys", "short", "slipstream:api_keys"),
    ),
)
FAILED = 'event=~"kv_transfers_failed|kv_transfers_cancelled|kv_transfer_checksum_failures"'
TRANSFERS = Dashboard(
    "transfers",
    "transfers",
    (MODEL,),
    (
        of_models("Hand-offs", "ops", rate, ("slipstream:transfers_total", "")),
        of_models("KV bytes handed off", "Bps", rate, ("slipstream:transfer_bytes_total", "")),
        ratio(
            "Bandwidth of one hand-off",
            "Bps",
            "slipstream:transfer_bytes_total",
            "slipstream:transfer_seconds_total",
        ),
        panel(
            "Failures",
            "ops",
            (rate("slipstream:worker_events_total", f"{M},{FAILED}", "worker", "event"), "{{worker}} {{event}}"),
        ),
        panel("Hand-offs under way", "short", (total("slipstream:worker_leases", M, "worker"), "{{worker}}")),
        of_models("Closed links", "short", total, ("slipstream:closed_links", ""), red_above=1),
        panel("Running requests moved", "ops", (rate("slipstream:migrations_total", M, "result"), "{{result}}")),
        quantiles("Pauses of moves", "slipstream:migration_pause_seconds"),
        of_models("Moves for faster answers", "ops", rate, ("slipstream:rebalanced_total", "")),
    ),
)
PLANNER = Dashboard(
    "planner",
    "planner",
    (),
    (
        panel("Workers wanted", "short", (total("slipstream:fleet_workers", "", "role"), "{{role}}")),
        panel("Workers connected", "short", (total("slipstream:workers", "", "role"), "{{role}}")),
        panel("Decisions", "ops", (rate("slipstream:planner_decisions_total", "", "reason"), "{{reason}}")),
        panel("Actions", "ops", (rate("slipstream:planner_actions_total", "", "action"), "{{action}}")),
        panel(
            "Errors and refused actions",
            "ops",
            ("rate(slipstream:planner_errors_total[$__rate_interval])", "errors"),
            ("rate(slipstream:planner_failed_actions_total[$__rate_interval])", "refused"),
        ),
        panel("Held back for", "s", ("slipstream:planner_held_seconds", "{{model_name}} {{reason}}"), red_above=1800),
        panel("Load that was planned for", "short", ("slipstream:planner_seen", "{{figure}}")),
        panel(
            "Predicted attainment",
            "percentunit",
            ("slipstream:planner_predicted_attainment", "{{num_prefill}}+{{num_decode}}"),
        ),
        panel("Changed model files", "short", ("slipstream:model_files_changed", "{{version}}"), red_above=1),
    ),
)


def mean_us(name: str) -> str:
    by = ("model", "version")
    return f"{rate(f'nv_inference_{name}_duration_us', N, *by)} / {rate('nv_inference_request_success', N, *by)}"


DCGM = f"{GPU_UTIL_OF_DCGM} and on (gpu_uuid) nv_gpu_utilization"
TRITON = Dashboard(
    "triton",
    "Triton",
    (TENSOR_MODEL,),
    (
        panel(
            "Requests", "reqps", (rate("nv_inference_request_success", N, "model", "version"), "{{model}} {{version}}")
        ),
        panel(
            "Failures", "reqps", (rate("nv_inference_request_failure", N, "model", "reason"), "{{model}} {{reason}}")
        ),
        panel("Waiting", "short", (total("nv_inference_pending_request_count", N, "model"), "{{model}}")),
        panel("Mean time of a request", "µs", (mean_us("request"), "{{model}} {{version}}")),
        panel("Mean time in the queue", "µs", (mean_us("queue"), "{{model}} {{version}}")),
        panel("Mean time of computing", "µs", (mean_us("compute_infer"), "{{model}} {{version}}")),
        panel(
            "Rows of an execution",
            "short",
            (f"{rate('nv_inference_count', N, 'model')} / {rate('nv_inference_exec_count', N, 'model')}", "{{model}}"),
        ),
        panel(
            "Processors of instances",
            "short",
            (rate("slipstream:instance_cpu_seconds_total", N, "host", "instance"), "{{host}} {{instance}}"),
        ),
        panel(
            "Memory of instances",
            "bytes",
            (f"slipstream:instance_resident_memory_bytes{{{N}}}", "{{host}} {{instance}}"),
        ),
        panel(
            "Processors of instance hosts",
            "short",
            (rate("slipstream:instance_host_cpu_seconds_total", "", "host"), "{{host}}"),
        ),
        panel("Memory of instance hosts", "bytes", ("slipstream:instance_host_resident_memory_bytes", "{{host}}")),
        panel("Processors of the router's host", "percentunit", ("nv_cpu_utilization", "")),
        panel(
            "Memory of the router's host",
            "bytes",
            ("nv_cpu_memory_used_bytes", "used"),
            ("nv_cpu_memory_total_bytes", "total"),
        ),
        panel("GPU utilisation", "percentunit", ("nv_gpu_utilization", "{{gpu_uuid}}")),
        panel("GPU memory", "bytes", ("nv_gpu_memory_used_bytes", "{{gpu_uuid}}")),
        panel("GPU power", "watt", ("nv_gpu_power_usage", "{{gpu_uuid}}")),
        panel("GPU utilisation by dcgm-exporter", "percentunit", (DCGM, "{{gpu_uuid}}")),
        panel("Loading", "s", (f"nv_model_load_duration_secs{{{N}}}", "{{model}} {{version}}")),
    ),
)
DASHBOARDS = (OVERVIEW, ONE_MODEL, ONE_WORKER, TENANTS, TRANSFERS, PLANNER, TRITON)
