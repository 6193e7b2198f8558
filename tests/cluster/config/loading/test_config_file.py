"""Every mistake in a configuration is one sentence that names file, line, key, reason and value."""

from __future__ import annotations

import asyncio
import json
import math
import re
import struct
from pathlib import Path

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading import config_file
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.model_dir import examine_text
from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.router import Router
from slipstream.router.text.tokenizer import TokenizerError
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.sharding.rank_share import Rank, RankShare
from slipstream.workers.models.sharding.tensor_check import parts_of

ROOT = Path(__file__).resolve().parents[4]
MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}


# Of the 32 tokens that the model has, 3 are spelt.
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {"id": 0, "content": "</s>", "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    ],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"</s>": 0, "a": 1, "b": 2}, "merges": []},
}


def write_model(path: Path) -> Path:
    """A model as small as one can be; all its weights are zero."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(MODEL_CONFIG))
    (path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    write_weights(path)
    return path


def write_weights(path: Path) -> None:
    """The tensors that config.json asks for."""
    header, end = {}, 0
    for part in parts_of(RankShare.of(ModelConfig.read(path), Rank())):
        begin, end = end, end + 4 * math.prod(part.stored_shape)
        header[part.name] = {"dtype": "F32", "shape": part.stored_shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(end))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny")
    return tmp_path


def load(folder: Path, text: str) -> ClusterConfig:
    path = folder / "c.yaml"
    path.write_text(text)
    return load_config(path)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_a_minimal_file_means_the_defaults(folder: Path) -> None:
    config = load(folder, "model:\n  path: tiny\n")
    assert config == ClusterConfig(model=config.model)
    assert config.model.path == str(folder / "tiny")
    assert config.model.name == "tiny"


def test_pools_share_the_engine_settings_and_override_them(folder: Path) -> None:
    config = load(
        folder,
        "model: {path: tiny, name: m}\nengine: {max_num_seqs: 7, kv_cache_mib: 9}\n"
        "decode: {engine: {max_num_seqs: 5}}\n",
    )
    assert (config.prefill.engine.max_num_seqs, config.prefill.engine.kv_cache_mib) == (7, 9)
    assert (config.decode.engine.max_num_seqs, config.decode.engine.kv_cache_mib) == (5, 9)
    assert config.model.name == "m"


@pytest.mark.parametrize("off", ["off", "'off'", "false"])
def test_off_without_quotes_is_off(folder: Path, off: str) -> None:
    config = load(folder, MODEL + f"engine: {{cpu_kernels: {off}}}\ndecode: {{engine: {{cpu_kernels: auto}}}}\n")
    assert (config.prefill.engine.cpu_kernels, config.decode.engine.cpu_kernels) == ("off", "auto")


def test_an_empty_section_means_the_defaults(folder: Path) -> None:
    assert load(folder, "model: {path: tiny}\nray:\nprefill:\n").prefill.replicas == 1


def test_a_path_is_relative_to_the_file_and_may_be_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert load(folder, "model: {path: ./x/../tiny}").model.path == str(folder / "tiny")
    assert load(folder, f"model: {{path: {folder / 'tiny'}}}").model.path == str(folder / "tiny")


def test_a_file_whose_only_key_is_misspelt_is_still_a_configuration(folder: Path) -> None:
    assert "c.yaml:1: modell: unknown setting; did you mean model?" in problems(folder, "modell: {path: tiny}\n")


MODEL = "model: {path: tiny}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "c.yaml: empty; at least model.path is needed"),
        ("- a\n", "c.yaml: must be a mapping of settings, got a list"),
        ("s3cret", "c.yaml: must be a mapping of settings, got a single value"),
        ("aws_key: s3cret\n", "c.yaml: none of its keys is a setting; at least model.path is needed"),
        ("name: x\n", "c.yaml: model: is missing; a deployment needs model, models or repository.paths"),
        ("model: {name: x}\n", "c.yaml:1: model.path: missing"),
        (
            "model: {path: tiny, chat_template_content_format: parts}\n",
            "c.yaml:1: model.chat_template_content_format: ",
        ),
        (
            "model: {path: tiny, tool_call_parser: hermess}\n",
            "c.yaml:1: model: tool_call_parser: unknown format of calls: 'hermess'; known are auto, none, ",
        ),
        (MODEL + "routr: {}\n", "c.yaml:2: routr: unknown setting; did you mean router?"),
        (
            MODEL + "router:\n  http:\n    prot: 1\n",
            "c.yaml:4: router.http.prot: unknown setting; did you mean port?",
        ),
        (MODEL + "decode:\n  engine: {page_size: 1}\n", "c.yaml:3: decode.engine.page_size: unknown setting;"),
        (MODEL + "prefill: {replicas: -1}\n", "c.yaml:2: prefill.replicas: must be from 0 to 1000, got -1"),
        (MODEL + 'prefill: {replicas: "2"}\n', 'c.yaml:2: prefill.replicas: must be a valid integer, got "2"'),
        (MODEL + "prefill: {replicas: true}\n", "c.yaml:2: prefill.replicas: must be a valid integer, got true"),
        (MODEL + "prefill: {replicas: 1.5}\n", "c.yaml:2: prefill.replicas: must be a valid integer, got"),
        (MODEL + "prefill: 3\n", "c.yaml:2: prefill: "),
        (
            MODEL + "engine: {dtype: fp8}\n",
            "c.yaml:2: engine.dtype: must be 'auto', 'float32', 'bfloat16' or 'float16'",
        ),
        (MODEL + "engine: {max_num_seqs: -4}\n", "c.yaml:2: engine.max_num_seqs: must be auto or at least 1, got -4"),
        (
            MODEL + "router: {http: {port: 70000}}\n",
            "c.yaml:2: router.http.port: must be a port number (0: a free one), got 70000",
        ),
        (
            MODEL + "router:\n  worker_port: 8000\n",
            "c.yaml:3: router.worker_port: must differ from router.http.port, got 8000",
        ),
        (
            MODEL + "admin_api:\n  port: 8000\n",
            "c.yaml:3: admin_api.port: must differ from the ports of the router, got 8000",
        ),
        (
            MODEL + "router: {dispatch: {policy: best}}\n",
            "c.yaml:2: router.dispatch.policy: must be 'slo', 'kv', 'least_loaded', 'round_robin' or 'isl_threshold'",
        ),
        (
            MODEL + "router: {api: {overlong: cut}}\n",
            "c.yaml:2: router.api.overlong: must be 'clamp' or 'refuse'",
        ),
        (
            MODEL + "router: {dispatch: {slo: {itl_ms: 0}}}\n",
            "c.yaml:2: router.dispatch.slo.itl_ms: must be over 0 and finite, got 0.0",
        ),
        (
            MODEL + "router: {dispatch: {placement: {max_candidates: 1}}}\n",
            "c.yaml:2: router.dispatch.placement.max_candidates: must be at least 2, got 1",
        ),
        (
            MODEL + "router: {dispatch: {local_prefill_max_tokens: -1}}\n",
            "c.yaml:2: router.dispatch.local_prefill_max_tokens: must be 0 or more, got -1",
        ),
        *(
            (
                MODEL + f"router: {{dispatch: {{{key}: {value}}}}}\n",
                f"c.yaml:2: router.dispatch.{key}: must be {rule}, got ",
            )
            for key, value, rule in (
                ("max_queued_requests", "0", "at least 1"),
                ("max_attempts", "0", "at least 1"),
                ("max_queued_per_tenant", "-1", "at least 1 or null"),
                ("queue_timeout_s", "0", "over 0 and finite"),
                ("request_timeout_s", ".nan", "over 0 and finite"),
                ("reserve_timeout_s", ".inf", "over 0 and finite"),
                ("worker_lease_s", "-3", "over 0 and finite"),
                ("ageing_s", ".nan", "finite and not negative"),
            )
        ),
        *(
            (
                MODEL + f"router: {setting}\n",
                f'c.yaml:2: router.{key}: must not be empty; "::" or 0.0.0.0 means all interfaces',
            )
            for setting, key in (
                ("{http: {host: ''}}", "http.host"),
                ("{admin: {host: ''}}", "admin.host"),
                ("{worker_host: ''}", "worker_host"),
            )
        ),
        *(
            (MODEL + f"{settings}kv_transfer:\n  transport: nccl\n", f"c.yaml:5: kv_transfer.transport: {problem}")
            for settings, problem in (
                (
                    "prefill: {engine: {device: cpu}}\ndecode: {engine: {device: cuda}}\n",
                    "nccl moves pages between GPUs or between CPUs, got nccl where prefill.engine.device is cpu and "
                    "decode.engine.device is cuda",
                ),
                (
                    "decode: {num_gpus: 0.5}\nengine: {device: cuda}\n",
                    "nccl needs a GPU for each rank, got nccl where decode.num_gpus is 0.5",
                ),
            )
        ),
        (
            MODEL + "kv_transfer:\n  transport: mpi\n",
            "c.yaml:3: kv_transfer.transport: must be 'auto', 'shared_memory', 'ucx' or 'nccl', got \"mpi\"",
        ),
        (MODEL + "kv_transfer:\n  lease_s: 0\n", "c.yaml:3: kv_transfer.lease_s: must be positive and finite, got 0"),
        *(
            (
                MODEL + f"{setting}\n",
                f"c.yaml:2: {key}: must be an IP address or the name of a host, got '{host}'",
            )
            for setting, key, host in (
                ("router: {http: {host: not a host}}", "router.http.host", "not a host"),
                ("router: {worker_host: 999.1.1.1}", "router.worker_host", "999.1.1.1"),
                ("router: {admin: {host: '[::1]'}}", "router.admin.host", "[::1]"),
                ("admin_api: {host: 'http://a'}", "admin_api.host", "http://a"),
                ("kv_transfer: {host: a..b}", "kv_transfer.host", "a..b"),
            )
        ),
        *(
            (MODEL + f"{setting}\n", f"c.yaml:2: {key}: must be at most 2147483647, got 99999999999")
            for setting, key in (
                ("ray: {object_store_mib: 99999999999}", "ray.object_store_mib"),
                ("planner: {max_workers: 99999999999}", "planner.max_workers"),
                ("decode: {engine: {kv_cache_mib: 99999999999}}", "decode.engine.kv_cache_mib"),
                ("drain_timeout_s: 99999999999.0", "drain_timeout_s"),
            )
        ),
        (MODEL + "engine: {num_threads: 100000}\n", "c.yaml:2: engine.num_threads: must be at most 1024, got 100000"),
        (MODEL + "drain_timeout_s: .inf\n", "c.yaml:2: drain_timeout_s: must be finite and not negative, got inf"),
        (
            MODEL + "restart: {backoff_s: 1e-3}\n",
            'c.yaml:2: restart.backoff_s: must be a valid number, got "1e-3"; YAML takes that for text, write 0.001',
        ),
        (
            MODEL + "ray: {object_store_mib: 1e3}\n",
            'c.yaml:2: ray.object_store_mib: must be a valid integer, got "1e3"',
        ),
        (MODEL + "drain_timeout_s: .nan\n", "c.yaml:2: drain_timeout_s: "),
        (MODEL + "drain_grace_s: -1\n", "c.yaml:2: drain_grace_s: must be finite and not negative, got -1"),
        (
            MODEL + "router: {http: {cors_origins: [app.example.com]}}\n",
            'c.yaml:2: router.http.cors_origins: must be "*" or origins such as https://app.example.com, without a '
            "path, got 'app.example.com'",
        ),
        (MODEL + "router: {http: {cors_origins: '*'}}\n", "c.yaml:2: router.http.cors_origins: "),
        (MODEL + "router: {http: {path_prefix: llm}}\n", "c.yaml:2: router.http.path_prefix: must begin with a slash"),
        (
            MODEL + f"router: {{http: {{unix_socket: {'a' * 100}}}}}\n",
            "c.yaml:2: router.http.unix_socket: must be null or a path of at most 107 bytes, got ",
        ),
        (MODEL + f"router: {{access: {{usage_file: {'a' * 300}}}}}\n", "c.yaml:2: router.access.usage_file: "),
        (MODEL + f"router: {{store: {{directory: {'a' * 300}}}}}\n", "c.yaml:2: router.store.directory: "),
        (MODEL + "name: a b\n", "c.yaml:2: name: must consist of 1 to 64 letters, digits, - and _"),
        (MODEL + "name: -x\n", "c.yaml:2: name: must consist of 1 to 64 letters, digits, - and _"),
        (MODEL + f"name: {'a' * 65}\n", "c.yaml:2: name: must consist of 1 to 64 letters, digits, - and _"),
        (MODEL + "decode: {replicas: 1001}\n", "c.yaml:2: decode.replicas: must be from 0 to 1000, got 1001"),
        (
            MODEL + "router: {dispatch: {worker_lease_s: 1.0e-9}}\n",
            "c.yaml:2: router.dispatch.worker_lease_s: must be at least 0.1, got 1e-09",
        ),
        (
            MODEL + "router:\n  http:\n    host: 2026-11-21\n",
            "c.yaml:4: router.http.host: YAML takes it for a date, which no setting is; put it in quotes, got ",
        ),
        (
            MODEL + "router: {http: {cors_origins: ['*', !!binary aGVsbG8=]}}\n",
            "c.yaml:2: router.http.cors_origins.1: YAML takes it for binary data, which no setting is; ",
        ),
        (MODEL + "prefill: {tp: 2, num_gpus: 0.5}\n", "c.yaml:2: prefill.num_gpus: must be 0, 1 or more with tp 2"),
        (
            MODEL + "prefill:\n  engine: {page_tokens: 32}\n",
            "c.yaml: page_tokens must be the same for prefill and decode, got 32 and 16",
        ),
        (
            MODEL + "decode:\n  engine: {kv_cache_dtype: fp8}\n",
            "c.yaml: kv_cache_dtype must be the same for prefill and decode, got auto and fp8",
        ),
        (
            MODEL + "engine: {kv_cache_dtype: int4}\n",
            "c.yaml:2: engine.kv_cache_dtype: must be 'auto', 'fp8' or 'int8'",
        ),
        (MODEL + "name: a\nname: b\n", "c.yaml:3: name: given twice (first in line 2)"),
        (
            MODEL + "router:\n  http: {port: 1}\n  http: {port: 2}\n",
            "c.yaml:4: router.http: given twice (first in line 3)",
        ),
        (MODEL + "router: {http: [}\n", "c.yaml:2: not valid YAML: "),
        (
            MODEL + "engine:\n  kv_cache_mib: lots\n",
            "c.yaml:3: engine.kv_cache_mib: must be a valid integer or 'auto', got \"lots\"",
        ),
        (MODEL + "engine: {cpu_kernels: on}\n", "c.yaml:2: engine.cpu_kernels: must be 'auto'"),
        (MODEL + "\tname: x\n", "c.yaml:2: not valid YAML: "),
        ("model: &a {path: tiny}\nx: !!python/object:os.system {}\n", "c.yaml:2: not valid YAML: "),
        ("model: {path: nowhere}\n", "c.yaml:1: model.path: no such directory: "),
        ("model:\n  path: c.yaml\n", "c.yaml:2: model.path: not a directory: "),
        ("model: {path: ''}\n", "c.yaml:1: model.path: must not be empty"),
        (
            'model:\n  path: tiny\n  name: "a\\tb\\e[31m"\n',
            r"c.yaml:3: model.name: must be printable, got 'a\tb\x1b[31m'",
        ),
    ],
)
def test_a_mistake_is_one_sentence(folder: Path, text: str, expected: str) -> None:
    (only,) = problems(folder, text)
    assert only.startswith(expected)
    assert "\n" not in only
    assert "Traceback" not in only


def test_a_directory_whose_name_cannot_be_shown_needs_a_name_for_its_model(folder: Path) -> None:
    write_model(folder / "ti\x07ny")
    (only,) = problems(folder, 'model:\n  path: "ti\\any"\n')
    assert only == r"c.yaml:2: model.path: the directory's name 'ti\x07ny' cannot be the model's; give model.name"
    assert load(folder, 'model:\n  path: "ti\\any"\n  name: tiny\n').model.name == "tiny"


def test_a_large_number_that_is_no_amount_is_allowed(folder: Path) -> None:
    config = load(folder, "model: {path: tiny, version: 202611220955}\ndecode: {resources: {disk_bytes: 1.0e+12}}\n")
    assert (config.model.version, config.decode.resources) == ("202611220955", {"disk_bytes": 1e12})


@pytest.mark.parametrize("host", ["::1", "10.0.0.7", "localhost", "node-1.rack_2.example.", "a" * 63])
def test_a_host_has_a_name_or_an_address(folder: Path, host: str) -> None:
    assert load(folder, MODEL + f"router: {{http: {{host: '{host}'}}}}\n").router.http.host == host


def test_all_mistakes_are_named_at_once(folder: Path) -> None:
    found = problems(folder, "model: {path: tiny}\nrouter: {http: {port: a, hots: b}}\nname: 4\n")
    assert sorted(re.findall(r"^c\.yaml:\d: ([\w.]+):", "\n".join(found), re.MULTILINE)) == [
        "name",
        "router.http.hots",
        "router.http.port",
    ]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: no such file"):
        load_config(tmp_path / "gone.yaml")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"b\.yaml: not UTF-8 text \(byte 3\)"):
        load_config(path)


@pytest.mark.parametrize("name", ["/dev/zero", "a\0b.yaml"])
def test_what_has_no_end_or_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"larger than|null byte"):
        load_config(Path(name))


def test_a_directory_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}: ")):
        load_config(tmp_path)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configurations_that_come_along_are_valid(path: Path) -> None:
    config = load_config(path)
    assert config.model.name == ("" if config.repository.is_on else "slipstream-demo")


@pytest.mark.parametrize(
    ("name", "contents", "expected"),
    [
        ("config.json", None, "no config.json in "),
        ("config.json", b"{", "config.json is not valid JSON: "),
        ("config.json", b"[]", "config.json must hold a JSON object"),
        (
            "config.json",
            json.dumps(MODEL_CONFIG | {"architectures": ["BertForMaskedLM"]}).encode(),
            "BertForMaskedLM",
        ),
        ("config.json", json.dumps(MODEL_CONFIG | {"num_attention_heads": 5}).encode(), "num_key_value_heads"),
        (
            "config.json",
            json.dumps(MODEL_CONFIG | {"quantization_config": {"quant_method": "bitsandbytes"}}).encode(),
            "quantization_config.quant_method: 'bitsandbytes' cannot be read here: ",
        ),
        ("tokenizer.json", None, "no tokenizer.json in "),
        (
            "generation_config.json",
            b'{"eos_token_id": "x"}',
            "generation_config.json: eos_token_id: must be a token id",
        ),
        ("model.safetensors", None, "has neither model.safetensors nor model.safetensors.index.json"),
        ("model.safetensors", b"", "model.safetensors is truncated or no safetensors file (0 bytes)"),
        ("model.safetensors", b"\xff" * 100, "model.safetensors is truncated or no safetensors file (100 bytes)"),
        ("model.safetensors", struct.pack("<Q", 2) + b"[]", "model.safetensors is no safetensors file"),
    ],
)
def test_a_broken_model_directory_is_named(folder: Path, name: str, contents: bytes | None, expected: str) -> None:
    if contents is None:
        (folder / "tiny" / name).unlink()
    else:
        (folder / "tiny" / name).write_bytes(contents)
    (only,) = problems(folder, MODEL)
    assert only.startswith("c.yaml:1: model.path: ")
    assert expected in only


@pytest.mark.parametrize(
    ("index", "expected"),
    [(b"{}", "weight_map: must name the file"), (b'{"weight_map": {"w": "two"}}', "two does not exist")],
)
def test_a_broken_index_is_named(folder: Path, index: bytes, expected: str) -> None:
    (folder / "tiny" / "model.safetensors").unlink()
    (folder / "tiny" / "model.safetensors.index.json").write_bytes(index)
    (only,) = problems(folder, MODEL)
    assert expected in only


def test_weights_that_do_not_fit_config_json_are_named(folder: Path) -> None:
    (folder / "tiny" / "config.json").write_text(json.dumps(MODEL_CONFIG | {"num_hidden_layers": 2}))
    (only,) = problems(folder, MODEL)
    assert only.endswith("tensor model.layers.1.input_layernorm.weight is missing")


def add_token(model_dir: Path, token_id: int, text: str) -> None:
    token = TOKENIZER["added_tokens"][0] | {"id": token_id, "content": text}  # type: ignore[index]
    spec = TOKENIZER | {"added_tokens": [*TOKENIZER["added_tokens"], token]}  # type: ignore[misc]
    spec["model"] = TOKENIZER["model"] | {"vocab": {"</s>": 0} | {f"t{n}": n for n in range(1, token_id)}}  # type: ignore[operator]
    (model_dir / "tokenizer.json").write_text(json.dumps(spec))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", "{", "tokenizer.json cannot be read: "),
        (
            "tokenizer.json",
            json.dumps(TOKENIZER | {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}),
            "WordPiece",
        ),
        ("tokenizer_config.json", '"x"', "tokenizer_config.json does not hold a JSON object"),
        ("chat_template.jinja", "{% if %}", "the chat template is not valid: "),
    ],
)
def test_what_the_router_would_refuse_of_tokenizer_and_template_is_found_without_one(
    folder: Path, name: str, content: str, problem: str
) -> None:
    config = load(folder, MODEL)
    assert examine_text(config).problem is None
    (folder / "tiny" / name).write_text(content)
    found = examine_text(config).problem
    assert found is not None
    assert found.startswith("model.path: ")
    assert problem in found
    with pytest.raises(TokenizerError, match=re.escape(found.removeprefix("model.path: "))):
        asyncio.run(Router(config.router, [ModelSource("tiny", Path(config.model.path))], "token").start())


def test_a_chat_template_that_writes_what_the_model_does_not_have_is_refused(folder: Path) -> None:
    add_token(folder / "tiny", 32, "<|turn|>")
    config = load(folder, MODEL)
    assert examine_text(config).problem is None
    (folder / "tiny" / "chat_template.jinja").write_text("{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}")
    problem = examine_text(config).problem or ""
    assert "the chat template writes a token that is beyond the model: token '<|turn|>' has the id 32" in problem


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("{max_model_len: 64, num_pages: 1}", "max_model_len: 64 is over the 16 tokens that num_pages 1 holds"),
        ("{page_tokens: 9000, kv_cache_mib: 1}", "kv_cache_mib: 1 does not hold a single page of 2304000 bytes"),
        ("{max_model_len: 1}", "max_model_len: must be at least 2, got 1"),
    ],
)
def test_a_pool_that_holds_no_sequence_is_named_once(folder: Path, engine: str, expected: str) -> None:
    (problem,) = problems(folder, MODEL + f"engine: {engine}\n")
    assert problem == f"c.yaml:2: engine.{expected}"


@pytest.mark.parametrize(
    ("engine", "num_bytes", "expected"),
    [
        ("device: cpu", 1000, r"c.yaml:3: budget.memory_gib: \S+ does not hold a single page of \d+ bytes"),
        (
            "device: cpu, max_model_len: 64, page_tokens: 2",
            10_000,
            r"c.yaml:2: engine.max_model_len: 64 is over the \d+ tokens that budget.memory_gib \S+ holds",
        ),
    ],
)
def test_what_the_memory_of_a_host_can_never_hold_is_named(
    folder: Path, engine: str, num_bytes: int, expected: str
) -> None:
    text = MODEL + f"engine: {{{engine}}}\nbudget: {{memory_gib: {num_bytes / 2**30:.12f}}}\n"
    assert any(re.match(expected, line) for line in problems(folder, text))


def test_with_a_budget_the_size_of_a_single_pool_limits_nothing(folder: Path) -> None:
    text = MODEL + "engine: {page_tokens: 9000, kv_cache_mib: 1, device: cpu}\nbudget: {memory_gib: 1}\n"
    assert load(folder, text).budget.memory_bytes == 1 << 30


@pytest.mark.parametrize(
    ("registered", "expected"),
    [
        ("{a: math.sqrt}", "c.yaml:2: engine.logits_processors.a: must be package.module:function, got 'math.sqrt'"),
        ("{a: 'math:'}", "engine.logits_processors.a: must be package.module:function, got 'math:'"),
        ("{'a b': 'math:sqrt'}", "a name has up to 64 letters, digits, _, . and -, got 'a b'"),
        ("{a: 5}", "engine.logits_processors: must be a valid string, got 5"),
    ],
)
def test_the_form_of_logits_processors_is_checked(folder: Path, registered: str, expected: str) -> None:
    assert any(expected in line for line in problems(folder, MODEL + f"engine: {{logits_processors: {registered}}}\n"))


def test_logits_processors_are_registered_for_both_pools(folder: Path) -> None:
    config = load(folder, MODEL + "engine: {logits_processors: {a: 'math:sqrt'}}\n")
    assert config.prefill.engine.logits_processors == config.decode.engine.logits_processors == {"a": "math:sqrt"}


def test_inputs_without_groups_are_named_where_int4_is_asked_for(folder: Path) -> None:
    (folder / "tiny" / "config.json").write_text(json.dumps(MODEL_CONFIG | {"intermediate_size": 72}))
    write_weights(folder / "tiny")
    (only,) = problems(folder, MODEL + "decode: {engine: {quantization: int4}}\n")
    assert only.startswith("c.yaml:2: decode.engine.quantization: int4: 72 inputs have no groups of at least 16")


def test_a_tensor_parallel_degree_that_does_not_divide_the_model_is_named(folder: Path) -> None:
    (only,) = problems(folder, f"{MODEL}\nprefill: {{tp: 3}}")
    assert "prefill.tp: must divide the model's num_heads = 4, got 3" in only


def test_a_model_len_beyond_the_models_own_is_named_where_it_stands(folder: Path) -> None:
    text = f"{MODEL}\nengine: {{max_model_len: 1000000}}\nprefill: {{engine: {{max_model_len: 64}}}}"
    (only,) = problems(folder, text)
    assert only.startswith("c.yaml:3: decode.engine.max_model_len: must be at most the model's ")


def test_all_mistakes_of_one_section_are_named(folder: Path) -> None:
    text = (
        f"{MODEL}\nrouter: {{frontends: 0, history_requests: 0, http: {{max_body_mib: 0, max_connections: 0}}, x: 1}}"
    )
    sentences = problems(folder, text)
    for key in ("frontends", "history_requests", "http.max_body_mib", "http.max_connections", "x"):
        assert sum(f": router.{key}: " in line for line in sentences) == 1, key


@pytest.mark.parametrize("text", ["router: &r {dispatch: *r}", "router: &r {http: {port: [1, *r]}}"])
def test_an_alias_of_what_it_stands_in_is_named(folder: Path, text: str) -> None:
    (only,) = problems(folder, f"{MODEL}\n{text}")
    assert only.startswith("c.yaml:3: router.")
    assert only.endswith("an alias of what it stands in, without end")


def test_a_file_that_aliases_make_huge_is_refused_at_once(folder: Path) -> None:
    lines = ["l0: &l0 [x]", *(f"l{n}: &l{n} [{', '.join(f'*l{n - 1}' for _ in range(9))}]" for n in range(1, 12))]
    (only,) = problems(folder, "\n".join([MODEL, *lines]))
    assert only == "c.yaml: more than 100000 values, which no configuration has"


def test_a_character_that_no_yaml_has_is_named(folder: Path) -> None:
    (only,) = problems(folder, "model: \0")
    assert only.startswith("c.yaml: not valid YAML: unacceptable character #x0000")


def test_a_path_that_is_too_long_is_named_where_it_stands(folder: Path) -> None:
    (only,) = problems(folder, f"model: {{path: /{'a' * 5000}}}")
    assert only == "c.yaml:1: model.path: File name too long"


def test_files_that_cannot_be_there_are_named(folder: Path) -> None:
    text = f"{MODEL}\nrouter: {{access: {{usage_file: nowhere/usage}}}}\nadmin_api: {{token_file: nowhere/token}}"
    usage, token = problems(folder, text)
    assert usage.startswith("c.yaml:3: router.access.usage_file: ")
    assert "there is no folder" in usage
    assert token.startswith("c.yaml:4: admin_api.token_file: ")
    (usage,) = problems(folder, MODEL + "router: {access: {usage_file: tiny}}")
    assert usage == f"c.yaml:2: router.access.usage_file: {folder}/tiny: must be a file, is a folder"


def test_a_weight_file_that_ends_too_soon_is_named_with_both_sizes(folder: Path) -> None:
    path = folder / "tiny" / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    (only,) = problems(folder, MODEL)
    assert f"is truncated: {len(whole) - 1} bytes of {len(whole)}" in only


def test_a_transport_that_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "has_ucx", lambda: False)
    path = tmp_path / "c.yaml"
    path.write_text(f"model: {{path: {write_model(tmp_path / 'm')}}}\nkv_transfer: {{transport: ucx}}\n")
    with pytest.raises(ConfigError, match=r"c\.yaml:2: kv_transfer\.transport: UCX is not installed \(pip install"):
        load_config(path)
