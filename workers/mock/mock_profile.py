"""What a mock worker pretends to be: its size and its speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress
from slipstream.router.protocol.messages import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, Hello, Role, StepTime
from slipstream.workers.mock.output_policy import FIRST_TOKEN_ID
from slipstream.workers.telemetry.plain_build import plain_build
from slipstream.workers.telemetry.step_profile import step_profile


@dataclass(frozen=True, slots=True)
class MockProfile:
    """Sizes are in pages and tokens, times in seconds. The defaults are a large worker that takes no time at all.

    A step takes `step_s + decode_token_s * decoding sequences + prefill_token_s * prompt tokens + context_token_s *
    tokens that decoding sequences attend to`. Pages take `transfer_s + transfer_page_s * pages` to arrive. Tokens that
    are found in the prefix cache are neither computed nor sent. A decode worker that `reserves_output` takes a sequence
    only with pages for all that it may come to have (`engine.scheduler_policy: guaranteed_no_evict`).
    """

    page_tokens: int = 16
    num_pages: int = 65_536
    max_slots: int = 256
    max_model_len: int = 32_768
    max_queued_tokens: int = 65_536
    max_step_tokens: int = 2_048
    vocab_size: int = 1_024
    step_s: float = 0.0
    decode_token_s: float = 0.0
    prefill_token_s: float = 0.0
    context_token_s: float = 0.0
    transfer_s: float = 0.0
    transfer_page_s: float = 0.0
    start_lease_s: float = 30.0  # how long a reservation waits for its first token
    prefix_caching: bool = True
    reserves_output: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool):
                continue
            if field.name.endswith("_s"):
                if not 0 <= value < float("inf"):
                    raise ValueError(f"{field.name} must be a time in seconds, got {value}")
            elif value < 1:
                raise ValueError(f"{field.name} must be at least 1, got {value}")
        if self.vocab_size <= FIRST_TOKEN_ID:
            raise ValueError(f"vocab_size must be over {FIRST_TOKEN_ID}, got {self.vocab_size}")

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_tokens)

    def step_seconds(self, num_decoding: int, num_prompt_tokens: int, context_tokens: int) -> float:
        """A step with so many sequences that decode, which attend to so many tokens, and tokens of prompts."""
        return (
            self.step_s
            + self.decode_token_s * num_decoding
            + self.prefill_token_s * num_prompt_tokens
            + self.context_token_s * context_tokens
        )

    def steps(self) -> Iterator[StepTime]:
        """What a worker times before its first request."""

        def seconds(num_seqs: int, num_tokens: int, context_tokens: int) -> float:
            if num_tokens > 1:
                return self.step_seconds(0, num_tokens, 0)
            return self.step_seconds(num_seqs, 0, num_seqs * (context_tokens + 1))

        return step_profile(self, seconds)

    def arrival_s(self, ticket: HandoffTicket) -> float:
        """How long the ticket's pages take to arrive."""
        return self.transfer_s + self.transfer_page_s * ticket.num_pages

    def hello(self, worker: PeerId, role: Role, model: str, address: TransferAddress) -> Hello:
        """The Hello of such a worker with one rank, without the secret."""
        return Hello(
            version=PROTOCOL_VERSION,
            token="",
            worker=worker,
            role=role,
            model=model,
            tp=1,
            pid=1,
            addresses=(address,),
            page_tokens=self.page_tokens,
            num_pages=self.num_pages,
            max_slots=self.max_slots,
            max_queued_tokens=self.max_queued_tokens,
            max_model_len=self.max_model_len,
            max_step_tokens=self.max_step_tokens,
            prefix_caching=self.prefix_caching,
            oldest_version=OLDEST_PROTOCOL_VERSION,
            build=plain_build(),
            reserves_output=self.reserves_output and role == "decode",
        )
