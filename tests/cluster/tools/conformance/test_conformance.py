"""The worker of the documentation keeps the protocol, and each rule that a worker breaks is found."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.tools.conformance import checks, conformance_run, router_end, worker_connection
from slipstream.cluster.tools.conformance.conformance_command import conformance_command
from slipstream.cluster.tools.conformance.conformance_run import CheckResult, run_checks
from slipstream.cluster.tools.conformance.router_end import RouterEnd

WORKER = Path(__file__).parents[4] / "docs" / "protocol" / "echo_worker.py"


def results_of(worker: Path, last: str = "") -> dict[str, CheckResult]:
    """Up to the check called `last`."""

    async def run() -> dict[str, CheckResult]:
        end = RouterEnd("chat", "secret", (sys.executable, str(worker), "{router}", "{model}"))
        results: dict[str, CheckResult] = {}
        try:
            async for result in run_checks(end, await end.listen("127.0.0.1", 0)):
                results[result.name] = result
                if result.name == last:
                    break
            return results
        finally:
            await end.close()

    return asyncio.run(run())


def test_the_worker_of_the_documentation_keeps_every_rule() -> None:
    results = results_of(WORKER)
    assert len(results) == 13
    assert [f"{name}: {result.problem}" for name, result in results.items() if result.problem is not None] == []


# A text of the worker, what stands there instead, the rule that this breaks, and what is said of it.
BREAKS = (
    ("index, self.num_output = self", "index, self.num_output = 1 + self", "answers_as_long_as_asked", "has index 1"),
    (
        "self.num_output = len(output) // 4",
        "self.num_output = 0",
        "goes_on_with_an_answer",
        "has index 0, expected is 4",
    ),
    (
        "self.prompt_ids[index %",
        "self.prompt_ids[(index + self.attempt) %",
        "goes_on_with_an_answer",
        "the resumed one",
    ),
    ("self.sequences.pop(fields[:2], None)", "pass", "drops_cancelled_answers", "there was not: Credits"),
    ("self.send(PONG, fields[0])", "pass", "answers_pings", "there was not: Pong(1)"),
    (
        "self.send(PONG, fields[0])",
        "self.send('pong')",
        "answers_pings",
        "sent what cannot be read (unknown message type",
    ),
    ("self.last_seq = fields[0]", "pass", "answers_as_long_as_asked", "there was not: Credits with ack_seq 2"),
    ("epoch += 1", "pass", "comes_back", "the epoch is"),
    ("MAX_SLOTS - len(self.sequences)", "MAX_SLOTS + 1", "greets", "Credits.free_slots is 33"),
    ("is_stop = token_id in", "is_stop = False and token_id in", "stops_at_tokens", "expected is 'stop' after 5"),
    ("if self.is_draining and not self.sequences:", "if self.is_draining:", "drains", "closed the connection"),
)


@pytest.mark.parametrize(("text", "instead", "rule", "problem"), BREAKS, ids=[rule for _, _, rule, _ in BREAKS])
def test_a_rule_that_a_worker_breaks_is_named(
    text: str, instead: str, rule: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connection, "WAIT_S", 1.0)
    monkeypatch.setattr(router_end, "RETURN_S", 3.0)
    monkeypatch.setattr(router_end, "END_S", 0.5)
    source = WORKER.read_text(encoding="utf-8")
    assert source.count(text) == 1
    worker = tmp_path / "worker.py"
    worker.write_text(source.replace(text, instead))
    assert problem in (results_of(worker, rule)[rule].problem or "")


@pytest.mark.parametrize("is_broken", [False, True])
def test_what_a_worker_prints_is_shown_only_after_a_rule_that_it_breaks(
    is_broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connection, "WAIT_S", 1.0)
    monkeypatch.setattr(conformance_run, "CHECKS", (checks.has_full_credits, checks.answers_pings))
    pong = "self.send(PONG, fields[0])"
    worker, kept = tmp_path / "worker.py", tmp_path / "kept.log"
    instead = "print('a ping', flush=True)" + ("" if is_broken else f"; {pong}")
    worker.write_text("print('it starts', flush=True)\n" + WORKER.read_text(encoding="utf-8").replace(pong, instead))
    command = ["--", sys.executable, str(worker), "{router}", "{model}"]
    result = CliRunner().invoke(conformance_command, ["--worker-output", str(kept), *command])
    assert result.exit_code == (1 if is_broken else 0)
    assert ("worker: a ping" in result.output) == is_broken
    assert "it starts" not in result.output  # which the greeting, that was right, is about
    assert kept.read_text().splitlines()[:2] == ["it starts", "a ping"]
