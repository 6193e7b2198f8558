"""Turns a turn of a conversation into the body of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.cluster.tools.bench.client.bench_target import Target
from slipstream.cluster.tools.bench.client.conversation import Turn


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The form of requests. With `ignore_eos`, answers have exactly the wanted length, on servers that know the field
    (vLLM, SGLang and Slipstream, but not OpenAI)."""

    target: Target
    is_stream: bool = True
    ignore_eos: bool = True

    def __call__(self, turn: Turn, before: Sequence[Turn]) -> bytes:
        """The body for a turn. `before` has the turns of user and assistant before it, alternating."""
        body = self._chat(turn, before) if self.target.kind == "chat" else self._completion(turn, before)
        if turn.output_length is not None:
            body["max_tokens"] = turn.output_length
            if self.ignore_eos:
                body["ignore_eos"] = True
        if turn.model:
            body["model"] = turn.model
        if self.is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return self.target.request(body)

    @staticmethod
    def _chat(turn: Turn, before: Sequence[Turn]) -> dict[str, Any]:
        if turn.messages:
            return {"messages": list(turn.messages)}
        converted = [
            {"role": "assistant" if number % 2 else "user", "content": said.text}
            for number, said in enumerate((*before, turn))
        ]
        return {"messages": converted}

    @staticmethod
    def _completion(turn: Turn, before: Sequence[Turn]) -> dict[str, Any]:
        return {"prompt": "\n".join(said.text for said in (*before, turn))}
