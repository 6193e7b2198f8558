"""Which requests get a forecast of their answer's length, and which answers teach something for later forecasts."""

from __future__ import annotations

from slipstream.router.protocol.messages import FinishReason
from slipstream.router.requests.output_length import OutputForecast, OutputLengths, prescribed
from slipstream.router.requests.request_state import RequestState


def forecast(lengths: OutputLengths, state: RequestState) -> OutputForecast:
    """How long the answer will probably be. Nothing is guessed if only max_tokens can end it."""
    request, sampling = state.request, state.request.sampling
    if sampling.ignore_eos and sampling.grammar is None and not sampling.stop_token_ids:
        return prescribed(sampling.max_tokens)
    return lengths.predict(request.tenant, state.num_prompt_tokens, sampling.max_tokens, request.expected_output_tokens)


def learn(lengths: OutputLengths, state: RequestState, reason: FinishReason) -> None:
    """A request has ended. Its length teaches nothing if it was prescribed."""
    request, num_tokens = state.request, len(state.output)
    if num_tokens == 0 or request.sampling.ignore_eos:
        return
    if reason in ("stop", "length"):
        lengths.calibration.score(state.forecast, num_tokens)
    lengths.learn(
        request.tenant,
        state.num_prompt_tokens,
        num_tokens,
        is_whole=reason == "stop",
        hint=request.expected_output_tokens,
    )
