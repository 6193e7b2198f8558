"""Each engine behind the same few calls. An adapter imports its engine when it starts: no environment has all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from workload import Request

MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 64


class Slipstream:
    """`model_impl` as in the configuration: with `transformers`, it is the general path that is measured."""

    version = ""

    def __init__(self, model_impl: str = "auto") -> None:
        self._model_impl = model_impl

    def start(self, model_dir: Path, num_threads: int, kv_cache_gib: int) -> None:
        config_module = import_module("slipstream.workers.config.worker_config")
        build = import_module("slipstream.workers.engine.engine_builder")
        self._messages: Any = import_module("slipstream.router.protocol.messages")
        config = config_module.EngineConfig(
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            kv_cache_mib=1024 * kv_cache_gib,
            prefix_caching=False,
            num_threads=num_threads,
            model_impl=self._model_impl,
        )
        limits = build.engine_limits(model_dir, config)
        self._engine = build.build_engine(limits, build.build_runner(model_dir, config, limits.num_pages))
        self._num_requests = 0

    def run(self, requests: Sequence[Request]) -> list[list[float]]:
        messages, engine = self._messages, self._engine
        stamps: dict[str, list[float]] = {}
        for request in requests:
            name = f"r{self._num_requests}"
            self._num_requests += 1
            sampling = messages.SamplingParams(max_tokens=request.num_outputs, temperature=0.0, ignore_eos=True)
            engine.add(messages.EngineRequest(name, 0, messages.pack_ids(request.prompt), b"", sampling))
            stamps[name] = []
        while engine.has_work:
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                stamps[output.request_id].append(now)
        return list(stamps.values())


class Vllm:
    """Its settings come through the environment, see `bench_engine`."""

    version = ""

    def start(self, model_dir: Path, num_threads: int, kv_cache_gib: int) -> None:
        vllm = import_module("vllm")
        self.version = vllm.__version__
        self._params: Any = vllm.SamplingParams
        self._engine = vllm.LLM(
            str(model_dir),
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            enable_prefix_caching=False,
            disable_log_stats=True,
        ).llm_engine
        self._num_requests = 0

    def run(self, requests: Sequence[Request]) -> list[list[float]]:
        stamps: dict[str, list[float]] = {}
        for request in requests:
            name = f"r{self._num_requests}"
            self._num_requests += 1
            params = self._params(temperature=0.0, max_tokens=request.num_outputs, ignore_eos=True, detokenize=False)
            self._engine.add_request(name, {"prompt_token_ids": request.prompt}, params)
            stamps[name] = []
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter()
            for output in outputs:
                tokens = stamps[output.request_id]
                tokens.extend([now] * (len(output.outputs[0].token_ids) - len(tokens)))
        return list(stamps.values())


class OpenVino:
    """Runs what `optimum-cli export openvino` has made of the model."""

    version = ""

    def start(self, model_dir: Path, num_threads: int, kv_cache_gib: int) -> None:
        self._genai: Any = import_module("openvino_genai")
        self._tensor: Any = import_module("openvino").Tensor
        self._numpy: Any = import_module("numpy")
        self.version = self._genai.__version__
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = kv_cache_gib
        scheduler.max_num_seqs = MAX_NUM_SEQS
        scheduler.max_num_batched_tokens = 512
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        precision = "f32" if "f32" in model_dir.name else "bf16"
        properties = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": num_threads}
        self._pipeline = self._genai.ContinuousBatchingPipeline(str(model_dir), scheduler, "CPU", properties)
        self._num_requests = 0

    def run(self, requests: Sequence[Request]) -> list[list[float]]:
        handles = []
        for request in requests:
            config = self._genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = request.num_outputs, True, False
            prompt = self._tensor(self._numpy.array([request.prompt], dtype=self._numpy.int64))
            handles.append(self._pipeline.add_request(self._num_requests, prompt, config))
            self._num_requests += 1
        stamps: list[list[float]] = [[] for _ in handles]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter()
            for handle, tokens in zip(handles, stamps, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        tokens.extend([now] * len(output.generated_ids))
        return stamps


ADAPTERS = {
    "slipstream": Slipstream,
    "slipstream-general": partial(Slipstream, "transformers"),
    "vllm": Vllm,
    "openvino": OpenVino,
}
