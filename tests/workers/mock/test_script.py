"""Mock workers that answer by the rules of a script."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, normalizers

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.protocol.messages import (
    EngineRequest,
    Failed,
    Generate,
    GrammarSpec,
    SamplingParams,
    StepOutput,
    TokenChunk,
    WorkerMessage,
    pack_ids,
)
from slipstream.workers.mock.main import mock_worker_command
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_worker import MockWorker
from slipstream.workers.mock.script import scripted_outputs
from slipstream.workers.mock.script.script_file import ScriptError, read_script
from slipstream.workers.mock.script.scripted_outputs import ScriptedOutputs
from slipstream.workers.transfers.ticket_issuer import TicketIssuer
from tests.support.router.mock_cluster import MockCluster

MODEL_DIR = Path(__file__).parents[3] / "models" / "slipstream-demo"
TOKENIZER = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
CALL = '<|tool_call|>{"name": "get_weather", "arguments": {"city": "\\g<city>"}}'


def load(folder: Path, model_dir: Path = MODEL_DIR, **content: Any) -> ScriptedOutputs:
    path = folder / "script.yaml"
    path.write_text(yaml.safe_dump(content))
    return ScriptedOutputs.load(read_script(path), model_dir)


def tokens_of(outputs: ScriptedOutputs, prompt: str) -> list[int]:
    output = outputs.output_of(pack_ids(TOKENIZER.encode(prompt, add_special_tokens=False).ids))
    assert output.token_at(len(output.token_ids)) in outputs.end_token_ids
    return list(output.token_ids)


def answer(outputs: ScriptedOutputs, prompt: str) -> str:
    text: str = TOKENIZER.decode(tokens_of(outputs, prompt), skip_special_tokens=False)
    return text


def test_the_rule_that_matches_closest_to_the_end_answers(tmp_path: Path) -> None:
    outputs = load(
        tmp_path,
        rules=[
            {"match": r"weather in (?P<city>\w+)", "reply": CALL},
            {"match": r"(\d+) degrees", "reply": "It has \\g<1>."},
        ],
        default="What?",
    )
    chat = "<|bos|><|user|>The weather in Paris, please.<|end|><|assistant|>"
    assert answer(outputs, chat) == CALL.replace("\\g<city>", "Paris")
    chat += answer(outputs, chat) + "<|end|><|tool|>21 degrees<|end|><|assistant|>"
    assert answer(outputs, chat) == "It has 21."
    chat += "It has 21.<|end|><|user|>And the weather in Oslo?<|end|><|assistant|>"
    assert answer(outputs, chat) == CALL.replace("\\g<city>", "Oslo")
    assert answer(outputs, "<|user|>Hello<|end|><|assistant|>") == "What?"


def test_of_rules_that_end_at_the_same_place_the_first_one_answers(tmp_path: Path) -> None:
    outputs = load(
        tmp_path,
        rules=[{"match": r"(?s)A title.*Paris", "reply": "Trip"}, {"match": "Paris", "reply": "Bonjour"}],
    )
    assert answer(outputs, "A title for this chat:\nParis") == "Trip"
    assert answer(outputs, "Paris") == "Bonjour"


def test_a_reply_counts_the_matches_so_far(tmp_path: Path) -> None:
    outputs = load(tmp_path, rules=[{"match": r"step", "reply": "\\g<count> of 3"}])
    assert answer(outputs, "step by step") == "2 of 3"


def test_pieces_and_characters_are_cut_as_the_script_says(tmp_path: Path) -> None:
    rules = [
        {"match": "pieces", "reply": ["ret", "urn", " value"]},
        {"match": "characters", "reply": "<|tool_call|>return", "cuts": "characters"},
        {"match": "tokens", "reply": "return value"},
    ]
    outputs = load(tmp_path, rules=rules)

    def pieces(prompt: str) -> list[str]:
        return [TOKENIZER.decode([token_id], skip_special_tokens=False) for token_id in tokens_of(outputs, prompt)]

    assert pieces("characters") == ["<|tool_call|>", *"return"]
    assert "".join(pieces("pieces")) == "".join(pieces("tokens")) == "return value"
    assert not any(piece.startswith("retu") for piece in pieces("pieces"))
    assert len(pieces("pieces")) > len(pieces("tokens"))


def test_a_tokenizer_that_puts_a_space_in_front_still_gives_the_text_of_the_script(tmp_path: Path) -> None:
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "H", "i", "▁Hi", "!"]
    tokenizer = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Prepend("▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    outputs = load(tmp_path, tmp_path, default="Hi! é")
    output = outputs.output_of(pack_ids([259]))
    spelled = [pieces[token_id] for token_id in output.token_ids]
    assert spelled == ["H", "i", "!", "▁", "<0xC3>", "<0xA9>"]


def run(
    outputs: ScriptedOutputs, prompt: str, output: tuple[int, ...] = (), **sampling: Any
) -> tuple[list[int], list[WorkerMessage]]:
    """The tokens, and all messages, of a decode worker."""
    issuer = TicketIssuer(PeerId("mock", 1), (TransferAddress("127.0.0.1", 1),), 8, 2, 2, 64)
    worker = MockWorker(MockProfile(), "decode", issuer, policy=outputs)
    prompt_ids = pack_ids(TOKENIZER.encode(prompt, add_special_tokens=False).ids)
    params = SamplingParams(**{"max_tokens": 50, **sampling})
    told = worker.handle(Generate(1, EngineRequest("r", 0, prompt_ids, pack_ids(output), params)), 0.0)
    while (due_s := worker.next_deadline_s()) is not None:
        told += worker.advance(due_s)
    assert worker.protocol.role.num_attempts == 0
    return [i for chunk in chunks(told) for i in chunk.token_ids], told


def chunks(told: list[WorkerMessage]) -> list[TokenChunk]:
    return [chunk for message in told if isinstance(message, StepOutput) for chunk in message.chunks]


def test_an_answer_ends_with_the_models_end_token_and_goes_on_where_it_was(tmp_path: Path) -> None:
    outputs = load(tmp_path, default="return value")
    whole, told = run(outputs, "x")
    last = chunks(told)[-1]
    assert (last.finish_reason, last.stop_token_id) == ("stop", whole[-1])
    assert whole[-1] in outputs.end_token_ids
    assert TOKENIZER.decode(whole) == "return value"
    for num_known in range(1, len(whole)):
        rest, _ = run(outputs, "x", tuple(whole[:num_known]))
        assert whole[:num_known] + rest == whole


@pytest.mark.parametrize("num_prompt", [10, 200], ids=["local prefill", "remote prefill"])
@pytest.mark.parametrize("at_s", [0.0, 0.005, 0.01, 0.02, 0.05])
def test_an_answer_survives_the_death_of_its_workers(tmp_path: Path, num_prompt: int, at_s: float) -> None:
    outputs = load(tmp_path, default="return value of the call", cuts="characters")
    cluster = MockCluster(DispatchConfig(local_prefill_max_tokens=32), policy=outputs)
    answer = cluster.submit("r", range(20, 20 + num_prompt), 100)
    cluster.run(until_s=at_s)
    for name in set(answer.workers):
        cluster.lose(name)
    cluster.run()
    assert answer.finish is not None
    assert answer.finish.reason == "stop"
    assert TOKENIZER.decode(answer.token_ids) == "return value of the call"


def test_the_ends_that_a_request_asks_for_count(tmp_path: Path) -> None:
    outputs = load(tmp_path, default="return value")
    whole, _ = run(outputs, "x")
    cut, told = run(outputs, "x", max_tokens=1)
    assert (cut, chunks(told)[-1].finish_reason) == (whole[:1], "length")
    stopped, told = run(outputs, "x", stop_token_ids=(whole[1],))
    assert (stopped, chunks(told)[-1].finish_reason) == (whole[:2], "stop")
    assert run(outputs, "x", ignore_eos=True, max_tokens=9)[0] == whole + [whole[-1]] * (9 - len(whole))
    assert run(outputs, "x", min_tokens=8)[0] == whole + [whole[-1]] * (9 - len(whole))


def test_a_grammar_is_ignored(tmp_path: Path) -> None:
    outputs = load(tmp_path, default="Hello")
    assert run(outputs, "x", grammar=GrammarSpec("regex", "a+"))[0] == run(outputs, "x")[0]


def test_a_rule_that_takes_too_long_fails_the_request_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted_outputs, "MATCH_TIMEOUT_S", 0.05)
    outputs = load(tmp_path, rules=[{"name": "slow", "match": "(a|aa)+$", "reply": "x"}], default="Hello")
    tokens, told = run(outputs, "a" * 80 + "b")
    assert tokens == []
    [failed] = [message for message in told if isinstance(message, Failed)]
    assert not failed.retryable
    assert failed.reason.startswith("script: rules[0] (slow).match: looking for it took more than")
    assert run(outputs, "Hi")[0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([], "must have keys and values"),
        ({"rule": []}, "'rule' is no key; there are tokenizer, cuts, default, rules"),
        ({"rules": {}}, "rules: must be a list, got {}"),
        ({"rules": ["x"]}, "rules[0]: must have keys and values"),
        ({"rules": [{"match": "x"}]}, "rules[0]: has no reply"),
        ({"rules": [{"reply": "x", "name": "n"}]}, "rules[0] (n): has no match"),
        ({"rules": [{"match": "(", "reply": "x", "name": "n"}]}, "rules[0] (n).match: '(' is no regular expression"),
        ({"rules": [{"match": "x", "reply": 3}]}, "rules[0].reply: must be a text or a list of texts, got 3"),
        (
            {"rules": [{"match": "x", "reply": ["a", None]}]},
            "rules[0].reply: must be a text or a list of texts, got None",
        ),
        ({"rules": [{"match": "x", "reply": "x", "cuts": "words"}]}, "rules[0].cuts: must be tokens or characters"),
        (
            {"rules": [{"match": "(?P<a>x)", "reply": "\\g<b>"}]},
            "rules[0].reply: match has no group 'b'; there are a, 0",
        ),
        ({"rules": [{"match": "x", "reply": "\\g<1>"}]}, "rules[0].reply: match has no group '1'"),
        ({"default": "\\g<0>"}, "default: has no match to take \\g<0> from"),
        ({"cuts": 1}, "cuts: must be tokens or characters, got 1"),
        ({"tokenizer": 1}, "tokenizer: must be a text, got 1"),
    ],
)
def test_a_bad_file_is_refused_by_rule_and_key(tmp_path: Path, content: Any, problem: str) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ScriptError) as error:
        read_script(path)
    assert str(error.value).startswith(f"{path}: {problem}")


def test_a_reply_beyond_the_vocabulary_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "</s>": 1}, []))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    with pytest.raises(ScriptError, match=r"rules\[0\]\.reply: the vocabulary has no token for 'b'"):
        load(tmp_path, tmp_path, default="a", rules=[{"match": "x", "reply": "ab"}])


def test_a_model_without_an_end_token_is_refused(tmp_path: Path) -> None:
    shutil.copy(MODEL_DIR / "tokenizer.json", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ScriptError, match="names no end token"):
        load(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("script", "arguments", "problem"),
    [
        ("default: x", (), "has no tokenizer, and there is no --tokenizer"),
        ("default: [", (), "script.yaml: while parsing"),
        ("tokenizer: nowhere", (), "nowhere cannot be used"),
        (None, ("--tokenizer", str(MODEL_DIR)), "--tokenizer is only used with --script"),
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, arguments: tuple[str, ...], problem: str
) -> None:
    monkeypatch.setenv("SLIPSTREAM_WORKER_TOKEN", "secret")
    if script is not None:
        path = tmp_path / "script.yaml"
        path.write_text(script)
        arguments = (*arguments, "--script", str(path))
    result = CliRunner().invoke(mock_worker_command, ["--router", "127.0.0.1:1", "--model", "m", *arguments])
    assert result.exit_code == 2
    assert problem in " ".join(result.output.split())
