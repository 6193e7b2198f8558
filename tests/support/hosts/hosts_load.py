"""Clients that ask without pause while something happens to the hosts, and what they were answered."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

import openai

from tests.support.e2e.streams import GREEDY, MODEL, prompt_of
from tests.support.hosts.ray_hosts import HostsCluster

# Prompt and output tokens, in turn: most are prefilled elsewhere than they decode.
SIZES = ((300, 40), (20, 60), (700, 20), (150, 90))


def client_of(serving: HostsCluster) -> openai.OpenAI:
    """The real client, which must not hide a failure by trying again."""
    return openai.OpenAI(base_url=serving.base_url + "/v1", api_key="not needed", max_retries=0, timeout=100.0)


def ask(client: openai.OpenAI, variant: int, salt: str) -> str:
    """The text of a greedy completion. A new salt finds no prefix cached."""
    num_prompt_tokens, num_output_tokens = SIZES[variant % len(SIZES)]
    answer = client.completions.create(
        model=MODEL,
        prompt=prompt_of(num_prompt_tokens, variant),
        max_tokens=num_output_tokens,
        extra_body={"cache_salt": salt},
        **GREEDY,
    )
    return answer.choices[0].text


@dataclass
class Load:
    """Runs in `with`: so many clients, each with one request after the other. What they received is in `answers`, as
    (variant, text or what went wrong, seconds)."""

    serving: HostsCluster
    num_clients: int = 4
    answers: list[tuple[int, str | Exception, float]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        for number in range(self.num_clients):
            thread = threading.Thread(target=self._run, args=(number,))
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answers(self, count: int, timeout_s: float = 100.0) -> None:
        """Returns when so many more have come."""
        wanted, deadline_s = len(self.answers) + count, time.monotonic() + timeout_s
        while len(self.answers) < wanted:
            assert time.monotonic() < deadline_s, f"only {len(self.answers)} of {wanted}\n{self.serving.output}"
            time.sleep(0.02)

    def check(self, expected: list[str]) -> None:
        """Every answer is the one of an undisturbed cluster."""
        wrong = [(v, said) for v, said, _ in self.answers if said != expected[v]]
        assert not wrong, f"{len(wrong)} of {len(self.answers)}: {wrong[:3]}\n{self.serving.logs[-6000:]}"

    def _run(self, number: int) -> None:
        with client_of(self.serving) as client:
            turn = number
            while not self._stop.is_set():
                variant = turn % (2 * len(SIZES))
                began_s = time.monotonic()
                said: str | Exception
                try:
                    said = ask(client, variant, f"{number} {turn}")
                except openai.OpenAIError as error:
                    said = error
                self.answers.append((variant, said, time.monotonic() - began_s))
                turn += 1
