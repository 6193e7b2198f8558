"""Rolling updates of a real cluster under load: no failed request, nothing of two versions in one answer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
import yaml

from slipstream.cluster.admin_api.client.admin_client import AdminClient
from slipstream.cluster.admin_api.client.admin_client import client_of as admin_client_of
from slipstream.cluster.terminal.command_error import CommandError
from tests.e2e.conftest import SMALL
from tests.support.e2e.altered_models import broken_model, perturbed_model
from tests.support.e2e.observation import status_of, wait_until_at_rest
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import GREEDY, MODEL, client_of, prompt_of

NUM_CLIENTS = 3
MAX_TOKENS = 12
PAUSE_S = 0.25  # of a client between two questions: else new workers start on what the load leaves of two cores
PROMPTS = [prompt_of(size, variant=60 + number) for number, size in enumerate((10, 24, 90, 150))]


@pytest.fixture(scope="module")
def updated_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingCluster]:
    with ServingCluster(tmp_path_factory.mktemp("updated"), {**SMALL, "name": "e2e-updates"}) as cluster:
        yield cluster


@pytest.fixture
def serving(updated_cluster: ServingCluster) -> ServingCluster:
    """A cluster that has its first version and configuration again after each of these tests."""
    wait_until_at_rest(updated_cluster)
    return updated_cluster


class Answer(NamedTuple):
    version: str
    number: int  # of the prompt
    text: str
    asked_s: float  # of `time.monotonic()`


@dataclass
class Load:
    """Clients that ask one question after the other."""

    serving: ServingCluster
    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    more: threading.Condition = field(default_factory=threading.Condition)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int) -> None:
        with client_of(self.serving) as client:
            while not self.ended.wait(PAUSE_S):
                number = (number + 1) % len(PROMPTS)
                try:
                    answer = ask(client, number)
                except openai.OpenAIError as error:
                    self.failures.append(str(error))
                else:
                    with self.more:
                        self.answers.append(answer)
                        self.more.notify_all()

    def wait_for_more(self, count: int) -> list[Answer]:
        """So many answers to questions that are asked from now on."""
        now_s = time.monotonic()

        def came() -> list[Answer]:
            return [answer for answer in self.answers if answer.asked_s >= now_s]

        with self.more:
            assert self.more.wait_for(lambda: len(came()) >= count, 120), self.failures
            return came()[:count]


def ask(client: openai.OpenAI, number: int, model: str = MODEL) -> Answer:
    asked_s = time.monotonic()
    answer = client.completions.create(model=model, prompt=PROMPTS[number], max_tokens=MAX_TOKENS, **GREEDY)
    return Answer(answer.system_fingerprint or "", number, answer.choices[0].text, asked_s)


@contextmanager
def loaded(serving: ServingCluster) -> Iterator[Load]:
    """Under load; no request may fail."""
    load = Load(serving)
    threads = [threading.Thread(target=load.run, args=(number,)) for number in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.ended.set()
        for thread in threads:
            thread.join()
    assert load.failures == []


def operator(serving: ServingCluster) -> AdminClient:
    state = serving.state
    assert state is not None
    return admin_client_of(state)


def command(serving: ServingCluster, *words: str, code: int = 0) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "slipstream.cluster.cli", *words, "--name", serving.name],
        env=serving.environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert run.returncode == code, f"{run.stdout}\n{run.stderr}\n{serving.logs[-4000:]}"
    return run.stdout + run.stderr


def config_with(serving: ServingCluster, folder: Path, **settings: Any) -> str:
    """The cluster's configuration with other settings, in another file."""
    config = yaml.safe_load(serving.config_path.read_text())
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / "next.yaml"
    path.write_text(yaml.safe_dump(config | settings))
    return str(path)


def versions(serving: ServingCluster) -> dict[str, Any]:
    return {one["name"]: one for one in status_of(serving)["versions"] if one["is_live"]}


def weights(serving: ServingCluster) -> dict[str, float]:
    return {name: one["weight"] for name, one in versions(serving).items()}


def the_version(serving: ServingCluster) -> str:
    (version,) = versions(serving)
    return version


def texts_of(serving: ServingCluster, version: str) -> dict[tuple[str, int], str]:
    """What a version says to each prompt."""
    with client_of(serving) as client:
        answers = [ask(client, number, f"{MODEL}@{version}") for number in range(len(PROMPTS))]
    assert {answer.version for answer in answers} == {version}
    return {(version, answer.number): answer.text for answer in answers}


def check_texts(load: Load, expected: dict[tuple[str, int], str]) -> None:
    """Every answer is, from its first token to its last, that of the version that it names."""
    assert all(expected[answer.version, answer.number] == answer.text for answer in load.answers)


def test_a_mirror_a_canary_a_promotion_and_the_way_back_under_load(serving: ServingCluster, tmp_path: Path) -> None:
    old = the_version(serving)
    path = config_with(serving, tmp_path, model={"path": str(perturbed_model(tmp_path / "new")), "name": MODEL})
    expected = texts_of(serving, old)
    with loaded(serving) as load:
        said = command(serving, "update", path, "--mirror", "50", "--reason", "new weights")
        assert "50 % of the requests are copied to it" in said
        assert {answer.version for answer in load.wait_for_more(40)} == {old}
        update = operator(serving).get("/v1/update")
        new = update["new"]
        (copied,) = re.findall(r"(\d+) requests copied, 0 failed", update["figures"])
        assert int(copied) >= 10
        assert "0 of " in update["figures"], "the weights are others, so no answer is equal"
        with client_of(serving) as client, pytest.raises(openai.NotFoundError, match="does not exist"):
            ask(client, 0, f"{MODEL}@{new}")
        command(serving, "split", f"{old}=90", f"{new}=10")
        serving.wait_for(lambda: set(versions(serving)) == {old, new}, 60)
        expected |= texts_of(serving, new)
        assert all(expected[old, number] != expected[new, number] for number in range(len(PROMPTS)))
        seen = Counter(answer.version for answer in load.wait_for_more(100))
        assert abs(seen[new] - 10) <= NUM_CLIENTS + 1  # those under way at the beginning and at the end
        command(serving, "split", f"{old}=0", f"{new}=100")
        serving.wait_for(lambda: operator(serving).get("/v1/update")["phase"] == "done", 100)
        assert {answer.version for answer in load.wait_for_more(20)} == {new}
        assert set(versions(serving)) == {new}
        command(serving, "rollback")
        assert {answer.version for answer in load.wait_for_more(20)} == {old}
    check_texts(load, expected)
    wait_until_at_rest(serving)
    changes = [json.loads(line) for line in command(serving, "history", "--json").splitlines()]
    updates = [one for one in changes if one["what"] == "update" and one["subject"] == f"{old} -> {new}"]
    assert [one["new"] for one in updates][:2] == ["starting", "mirror"]
    assert updates[-1]["new"] == "done"
    assert (updates[0]["who"], updates[0]["why"]) == ("operator", "new weights")


def test_a_canary_is_turned_round_at_once_and_a_killed_router_keeps_the_split(
    serving: ServingCluster, tmp_path: Path
) -> None:
    """The new version has another chat template, so text is tokenised for the version that will serve it."""
    old = the_version(serving)
    model = perturbed_model(tmp_path / "other")
    (model / "chat_template.jinja").write_text("{{ messages[0].content }} {{ messages[0].content }}")
    path = config_with(serving, tmp_path, model={"path": str(model), "name": MODEL})
    lengths = {old: chat_length(serving, old)}
    with loaded(serving) as load:
        command(serving, "update", path, "--split", "40")
        (new,) = set(versions(serving)) - {old}
        load.wait_for_more(20)
        lengths[new] = chat_length(serving, new)
        assert lengths[new] != lengths[old]
        for _ in range(10):
            version, length = chat(serving)
            assert length == lengths[version]
    router = serving.member("router")
    os.kill(router.pids[0], signal.SIGKILL)
    serving.wait_until_restarted("router", router.pids)
    serving.wait_for(lambda: weights(serving) == {old: 60, new: 40}, 60)
    assert {version: chat_length(serving, version) for version in (old, new)} == lengths
    (member,) = [one for one in status_of(serving)["workers"] if on(one, new, "decode")]
    with loaded(serving) as load:
        load.wait_for_more(10)
        os.kill(member["pid"], signal.SIGKILL)
        command(serving, "rollback")
        assert {answer.version for answer in load.wait_for_more(20)} == {old}
        # What ran on the killed worker cannot continue on a version with another text.
        load.failures = [text for text in load.failures if f"Version '{new}' of the model is not served" not in text]
    assert set(versions(serving)) == {old}
    assert chat(serving) == (old, lengths[old])
    wait_until_at_rest(serving)


def chat(serving: ServingCluster, model: str = MODEL) -> tuple[str, int]:
    """The version that a chat got, and how many tokens its prompt had."""
    with client_of(serving) as client:
        messages: Any = [{"role": "user", "content": "what is this"}]
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=1, **GREEDY)
    assert answer.usage is not None
    return answer.system_fingerprint or "", answer.usage.prompt_tokens


def chat_length(serving: ServingCluster, version: str) -> int:
    served, length = chat(serving, f"{MODEL}@{version}")
    assert served == version
    return length


def on(worker: dict[str, Any], version: str, role: str) -> bool:
    return (worker["version"], worker["role"]) == (version, role)


def test_a_broken_version_goes_back_by_itself_and_nobody_notices(serving: ServingCluster, tmp_path: Path) -> None:
    old = the_version(serving)
    expected = texts_of(serving, old)
    path = config_with(serving, tmp_path, model={"path": str(broken_model(tmp_path / "bad")), "name": MODEL})
    with loaded(serving) as load:
        said = command(serving, "update", path, "--split", "30", "--auto", code=1)
        load.wait_for_more(10)
    assert "rolled back" in said
    assert "are the model's scores numbers?" in said
    check_texts(load, expected)
    assert set(versions(serving)) == {old}
    wait_until_at_rest(serving)
    assert {member.name for member in serving.state.members} == {"router", "prefill-0", "decode-0"}  # type: ignore[union-attr]


def test_weights_that_are_overwritten_are_another_version_and_nobody_serves_them_as_the_old_one(
    serving: ServingCluster, tmp_path: Path
) -> None:
    before = yaml.safe_load(serving.config_path.read_text())["model"]
    model = perturbed_model(tmp_path / "model", seed=1)
    path = config_with(serving, tmp_path, model={"path": str(model), "name": MODEL, "version": "march"})
    command(serving, "update", path)
    assert the_version(serving) == "march"
    expected = texts_of(serving, "march")

    overwrite(perturbed_model(tmp_path / "other", seed=2), model)
    changed = f"{model}/model.safetensors has other content now"
    refused = f"refuses to serve version march: {changed}"
    name = kill(serving, "prefill")
    serving.wait_for(lambda: refused in serving.member(name).detail, 60)
    assert texts_of(serving, "march") == expected, "a decode worker serves on with what it has in memory"
    with pytest.raises(CommandError, match=f"no worker of version march can be started: {changed}"):
        operator(serving).post("/v1/fleet/scale", {"role": "decode", "replicas": 2})
    name = kill(serving, "decode")
    serving.wait_for(lambda: refused in serving.member(name).detail, 60)
    with client_of(serving) as client, pytest.raises(openai.InternalServerError, match=refused):
        client.with_options(max_retries=0).completions.create(model=MODEL, prompt="x", max_tokens=1)
    assert changed in serving.state.files["march"]  # type: ignore[union-attr]
    assert refused in serving.logs

    command(serving, "update", path)
    assert the_version(serving) == "march-2"
    assert set(texts_of(serving, "march-2").values()) != set(expected.values())
    assert f"version march cannot be loaded any more: {changed}" in command(serving, "rollback", code=1)
    assert the_version(serving) == "march-2"
    command(serving, "update", config_with(serving, tmp_path, model=before))
    wait_until_at_rest(serving)


def overwrite(source: Path, target: Path) -> None:
    """With the weights of another model, while size and mtime stay."""
    path = target / "model.safetensors"
    stat = path.stat()
    with path.open("r+b") as file:
        file.write((source / path.name).read_bytes())
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def kill(serving: ServingCluster, role: str) -> str:
    """A worker of this role; returns its name."""
    (member,) = [one for one in serving.state.members if one.role == role]  # type: ignore[union-attr]
    os.kill(member.pids[0], signal.SIGKILL)
    return member.name


def test_what_cannot_be_rolled_is_refused_with_its_key(serving: ServingCluster, tmp_path: Path) -> None:
    model = perturbed_model(tmp_path / "other")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    for settings, sentence in (
        ({"router": {"http": {"port": 1234}}}, "a new start is needed to change router.http"),
        ({"model": {"path": "/nowhere"}}, "model.path: no such directory: /nowhere"),
        ({}, "nothing differs from what runs"),
    ):
        path = config_with(serving, tmp_path, **settings)
        with pytest.raises(CommandError, match=sentence):
            operator(serving).post("/v1/update", {"config": path})
        with pytest.raises(CommandError, match=sentence):
            operator(serving).post("/v1/update", {"config": path, "split": 10.0})
    assert "nothing differs" in command(serving, "update", path, code=1)
    path = config_with(serving, tmp_path, model={"path": str(model), "name": MODEL})
    with pytest.raises(CommandError, match="has another chat template than what runs, and copies are made of tokens"):
        operator(serving).post("/v1/update", {"config": path, "mirror": 5.0})


def test_levels_of_the_dispatcher_are_taken_up_without_an_exchange(serving: ServingCluster, tmp_path: Path) -> None:
    before = {member.name: member.pids for member in serving.state.members}  # type: ignore[union-attr]
    slo_s = json.loads(serving.get("/cluster/signals")[1])["slo_ttft_s"]
    router = yaml.safe_load(serving.config_path.read_text())["router"]
    router["dispatch"] = {**router["dispatch"], "slo": {"ttft_ms": 1234.0}}
    said = command(serving, "update", config_with(serving, tmp_path, router=router))
    assert "taken up without an exchange of workers: router.dispatch.slo.ttft_ms" in said
    assert json.loads(serving.get("/cluster/signals")[1])["slo_ttft_s"] == 1.234
    operator(serving).post("/v1/update", {"config": str(serving.config_path)})
    assert json.loads(serving.get("/cluster/signals")[1])["slo_ttft_s"] == slo_s
    assert {member.name: member.pids for member in serving.state.members} == before  # type: ignore[union-attr]
