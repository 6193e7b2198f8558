"""Fixtures for all folders."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parent
collect_ignore = ["clients"]  # they need packages of another environment: scripts/test --clients

# Triton decides when it is first imported, and transformers imports it too, whether its kernels are interpreted.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests run in more processes than there are cores. Torch's threads wait for each other by spinning, so with several in
# each process a test takes up to three times as long. Workers and kernels that have threads are told how many.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says how busy the machine is, and nothing about what is tested. All else is as hypothesis
# has it: with CI=true the same examples every time.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# What takes many seconds, the longest first: a file is tested by one process, and a long one that came last would keep
# the other processes waiting. The tests of both lists have the marker `slow`, which `scripts/test --fast` leaves out.
LONG_FILES = (
    "kernels/gpu/test_sm90.py",  # the first time, when nothing is compiled yet
    "e2e/test_several_models.py",
    "browser/test_cluster_pages.py",
    "workers/mock/test_router_killed.py",
    "faults/test_campaign.py",
    "scripts/test_gpu_check.py",
    "scripts/test_architectures.py",
    "scripts/test_architectures_check.py",
    "cluster/planner/test_closed_loop.py",
    "kv_transfer/transports/test_transfer_processes.py",
    "workers/test_worker_failures.py",
    "workers/test_worker_memory.py",
    "kernels/gpu/test_gpu_ops.py",
    "router/frontends/test_front_deaths.py",
    "router/model_files/sources/test_object_source.py",
    "workers/test_worker_handoff.py",
    "workers/test_worker_swap.py",
    "router/frontends/test_fronts.py",
    "router/frontends/test_front_models.py",
    "cluster/driver/test_guardian.py",
    "router/api/openai/test_structured_output.py",
    "router/protocol/test_wire_codec.py",
    "cluster/test_cli.py",
    "router/dispatch/test_worker_port_fuzz.py",
    "cluster/tools/bench/test_bench_mock_cluster.py",
    "workers/engine/test_engine_parity.py",
    "workers/models/test_parity.py",
    "workers/models/general/test_general_tensor_parallel.py",
    "workers/models/general/execution/test_captured_model.py",
    "workers/models/general/test_self_check.py",
    "workers/models/test_tensor_parallel.py",
    "kernels/gpu/test_prefill_attention.py",
    "kv_transfer/transports/test_transfer_loopback.py",
    "workers/test_quantized_handoff.py",
    "router/text/test_word_cache.py",
    "router/requests/test_rejections.py",
    "router/text/test_tokenizer_files.py",
    "router/text/test_control_tokens.py",
    "router/api/openai/test_resumed_answers.py",
    "router/dispatch/test_dispatcher_simulation.py",
    "router/dispatch/test_versions_simulation.py",
    "cluster/tools/sim/test_sim_runs.py",
    "cluster/tools/sim/test_worlds_agree.py",
    "cluster/tools/sim/test_sim_migrations.py",
    "cluster/planner/test_simulated_runs.py",
    "cluster/admin_api/test_local_admin.py",
    "kernels/gpu/test_rope_kv_write.py",
    "kernels/gpu/test_sampling.py",
    "kernels/gpu/test_decode_attention.py",
    "kernels/gpu/test_decode_linear.py",
    "kernels/gpu/test_int4_linear.py",
    "kernels/test_gpu_modules.py",
    "kernels/cpu/test_cpu_attention.py",
    "kernels/cpu/test_cpu_linear.py",
    "kernels/cpu/test_cpu_team.py",
    "kv_transfer/ucx/test_ucx_links.py",
    "workers/engine/test_engine_properties.py",
    "workers/engine/test_exact_scores.py",
    "workers/engine/structured_output/test_grammars.py",
    "workers/engine/execution/test_gpu_runner.py",
    "workers/mock/test_mock_cluster.py",
    "router/parsers/grammar/test_output_grammars.py",
    "router/parsers/test_any_text.py",
    "router/api/openai/test_tools.py",
    "router/model_files/sources/test_web_source.py",
    "workers/engine/structured_output/test_phased_grammars.py",
    "workers/engine/test_windows.py",
    "workers/models/description/test_describing.py",
    "workers/models/general/test_cached_models.py",
    "workers/models/general/test_stored_graph.py",
    "cluster/planner/shared/test_shared_runs.py",
    "workers/mock/test_router_killed_tls.py",
    "router/api/openai/test_bad_requests.py",
    "workers/models/test_quantization.py",
    "cluster/update/test_updater.py",
    "router/text/test_prompts.py",
    "router/http/test_limits.py",
    "cluster/tools/plan/test_plan.py",
    "workers/models/test_model_loader.py",
    "router/dispatch/test_versions_http.py",
    "workers/engine/sampling/test_sampler.py",
    "kv_transfer/nccl/test_nccl_links.py",
    "router/access/test_http.py",
    "cluster/tools/bench/test_bench_command.py",
    "router/observability/tracing/test_trace_export.py",
    "kv_transfer/shared_memory/test_shm_links.py",
    "kv_transfer/handoff/test_state_machines.py",
    "cluster/tools/bench/test_bench_load.py",
    "router/http/failover/test_socket_holder.py",
    "cluster/processes/test_reaper.py",
    "router/placement/prefix/test_prefix_index.py",
    "workers/models/weights/test_weight_cache.py",
    "workers/roles/test_roles.py",
    "workers/interface/test_worker_contract.py",
    "workers/engine/kv_cache/test_page_pool.py",
    "kernels/attention/test_paged_attention.py",
    "workers/engine/kv_cache/test_quantized_pages.py",
    "kernels/gpu/test_fp8_linear.py",
    "router/http/test_slow_clients.py",
    "router/http/test_hard_clients.py",
    "kv_transfer/memory/test_pool_memory.py",
    "kv_transfer/ucx/test_ucx_memory_hooks.py",
    "router/test_http_router.py",
    "cluster/config/loading/test_config_file.py",
    "router/test_main.py",
    "cluster/admin_api/test_admin_api.py",
    "router/api/admin/test_worker_pages.py",
    "workers/engine/test_quantized_checkpoints.py",
    "cluster/planner/model/test_demand.py",
)
# What takes a second or some.
SLOW_FILES = (
    "browser/test_chat_page.py",
    "browser/test_many_workers.py",
    "browser/test_request_pages.py",
    "cluster/admin_api/test_admin_tls.py",
    "cluster/commands/test_ready_command.py",
    "cluster/commands/test_restart_command.py",
    "cluster/config/loading/test_model_settings.py",
    "cluster/config/loading/test_repository_settings.py",
    "cluster/config/test_config_changes.py",
    "cluster/driver/test_driver_process.py",
    "cluster/in_process/test_language_models.py",
    "cluster/in_process/test_programs.py",
    "cluster/in_process/test_server.py",
    "cluster/models/test_tensor_versions.py",
    "cluster/planner/shared/test_cluster_planner.py",
    "cluster/ray/test_local_ray.py",
    "cluster/repository/test_model_location.py",
    "cluster/sizing/test_serve_target.py",
    "cluster/supervisor/test_members.py",
    "cluster/supervisor/test_supervisor.py",
    "cluster/tools/batch/test_batch_command.py",
    "cluster/tools/bench/test_bench_answers.py",
    "cluster/tools/conformance/test_conformance.py",
    "cluster/tools/plan/test_tensor_plan.py",
    "cluster/tools/sim/test_agents.py",
    "cluster/update/test_rolling_update.py",
    "docs/test_examples.py",
    "gateway/test_envoy.py",
    "router/api/anthropic/test_bad_messages.py",
    "router/api/anthropic/test_messages.py",
    "router/api/generation/test_failures.py",
    "router/api/generation/test_tool_history.py",
    "router/api/kserve/grpc/test_grpc_server.py",
    "router/api/kserve/grpc/test_infer_stream.py",
    "router/api/kserve/test_large_tensors.py",
    "router/api/openai/batches/test_batch_run.py",
    "router/api/openai/responses/test_background.py",
    "router/api/openai/responses/test_response_bodies.py",
    "router/api/openai/responses/test_responses.py",
    "router/api/openai/responses/test_resumed_responses.py",
    "router/api/openai/responses/test_stored_responses.py",
    "router/api/openai/test_clients.py",
    "router/api/tensors/test_embeddings.py",
    "router/api/ui/test_admin_calls.py",
    "router/api/ui/test_live.py",
    "router/beam_search/test_beam_search.py",
    "router/dispatch/queue/test_queue.py",
    "router/dispatch/test_generation_service.py",
    "router/dispatch/test_placement.py",
    "router/dispatch/test_worker_tls.py",
    "router/http/test_bad_requests.py",
    "router/infer/ensembles/test_loads_of_ensembles.py",
    "router/infer/ensembles/test_served_ensembles.py",
    "router/infer/test_instance_counts.py",
    "router/infer/test_repository_service.py",
    "router/language_backends/test_model_links.py",
    "router/language_backends/test_real_tokens.py",
    "router/language_backends/test_tensorrt_models.py",
    "router/language_backends/test_vllm_models.py",
    "router/model_files/cache/test_host_cache.py",
    "router/model_files/sources/test_hub_source.py",
    "router/model_files/sources/test_source_contract.py",
    "router/model_repository/test_remote_source.py",
    "router/parsers/test_round_trip.py",
    "router/placement/prefix/test_conversations.py",
    "router/structured_output/regex/test_patterns.py",
    "router/text/test_conversations.py",
    "scripts/test_monitoring.py",
    "test_import_direction.py",
    "workers/backends/python/test_calls.py",
    "workers/backends/python/test_execution.py",
    "workers/backends/python/test_responses.py",
    "workers/engine/test_prompt_logprobs.py",
    "workers/instances/test_backend_instances.py",
    "workers/instances/test_implicit_states.py",
    "workers/instances/test_instance_host.py",
    "workers/instances/test_instance_tls.py",
    "workers/instances/test_library_backends.py",
    "workers/instances/test_python_instances.py",
    "workers/instances/test_third_party_backends.py",
    "workers/models/general/test_call_ways.py",
    "workers/test_router_link.py",
)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, where several processes take one file after the other."""
    places = {TESTS / name: place for place, name in enumerate(LONG_FILES)}
    slow = {*places, *(TESTS / name for name in SLOW_FILES)}
    for item in items:
        if item.path in slow:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: places.get(item.path, len(places)))


# Torch, transformers and thousands of tests are a million objects that stay: a collection that looks through them takes
# half a second, and there are dozens while they come, and in each test that makes much.
def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Workers keep packed weights in the user's cache directory, and drivers the history of clusters in that for state:
    nothing of the tests is to stay there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny_model_dir(family)`: the directory of a tiny random model (see `tests/support/workers/tiny_models.py`),
    built once a session. Shared between tests: read only."""
    # Imported here so that folders which need no model do not wait for transformers.
    from tests.support.workers.tiny_models import build_tiny_model

    built: dict[str, Path] = {}

    def model_dir(family: str) -> Path:
        if family not in built:
            built[family] = build_tiny_model(family, tmp_path_factory.mktemp(family))
        return built[family]

    return model_dir
