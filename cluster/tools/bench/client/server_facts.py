"""Finds out what is needed about a server before it is measured."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.cluster.tools.bench.client.bench_target import BenchError, Target
from slipstream.cluster.tools.bench.client.prompt_text import (
    COMMON,
    PromptWords,
    common_words,
    max_model_len,
    prompt_words,
    tokenizer_folder,
)

TIMEOUT_S = 10.0
MAX_TOLD_BYTES = 16 * 1024 * 1024
NO_LIST = (404, 405, 501)  # the status of a server that has no list of models
PROBE_WORDS = (16, 96)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The target, its model, the words to write prompts with, and how many tokens prompt and answer may have."""

    target: Target
    words: PromptWords
    max_model_len: int | None


def look_at(target: Target, model_dir: Path | None, further_models: Sequence[str] = ()) -> ServerFacts:
    """Asks for the model and, if there is no tokenizer, measures how many tokens its words have. Raises BenchError if
    no server answers, or if it does not serve one of the models."""
    cards = model_cards(target)
    names = [str(card.get("id")) for card in cards]
    if not target.model:
        if not names:
            raise BenchError(f"{target.root} does not say which models it serves; give --model")
        target = replace(target, model=names[0])
    card = next((card for card in cards if card.get("id") == target.model), {})
    missing = next((model for model in (target.model, *further_models) if model not in names), None)
    if cards and missing is not None:
        raise BenchError(f"{target.root} does not serve {missing!r} but {', '.join(names)}")
    folder = model_dir or tokenizer_folder(card)
    longest = card.get("max_model_len")
    if not isinstance(longest, int):
        longest = max_model_len(folder) if folder is not None and folder.is_dir() else None
    words = prompt_words(folder) if folder is not None else common_words(tokens_per_word(target))
    return ServerFacts(target, words, longest)


def model_cards(target: Target) -> list[dict[str, Any]]:
    """The server's list of models; empty if it has none. Raises BenchError if it cannot answer now and no model was
    named."""
    status, answer = ask(target, f"{target.root}{target.base}/models")
    if status in (401, 403):
        raise BenchError(f"{target.root} wants a key: {said(answer)} (--key, or SLIPSTREAM_API_KEY)")
    if status not in (200, *NO_LIST) and not target.model:
        raise BenchError(f"{target.root}{target.base}/models answers with status {status}: {said(answer)}")
    cards = answer.get("data") if isinstance(answer, dict) else None
    return [card for card in cards if isinstance(card, dict)] if status == 200 and isinstance(cards, list) else []


def tokens_per_word(target: Target) -> float:
    """The tokens per word, by the server's own count for two prompts. Raises BenchError if it does not answer them."""
    counts = []
    for count in PROBE_WORDS:
        text = " ".join(COMMON.split()[:count])
        prompt = {"messages": [{"role": "user", "content": text}]} if target.kind == "chat" else {"prompt": text}
        body = {"model": target.model, **prompt, "max_tokens": 1, **target.extra}
        status, answer = ask(target, target.url, body)
        if status != 200:
            raise BenchError(f"{target.url} answers with status {status}: {said(answer)}")
        usage = answer.get("usage") if isinstance(answer, dict) else None
        counts.append(usage.get("prompt_tokens") if isinstance(usage, dict) else None)
    few, many = counts
    if not isinstance(few, int) or not isinstance(many, int) or many <= few:
        return 1.3  # for English, with most tokenizers
    return (many - few) / (PROBE_WORDS[1] - PROBE_WORDS[0])


def ask(target: Target, url: str, body: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> tuple[int, Any]:
    """The status and the JSON (None if the body is not JSON) of an answer. Raises BenchError if no server answers."""
    headers = {"content-type": "application/json", **dict(target.headers)}
    if target.key:
        headers["authorization"] = f"Bearer {target.key}"
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if target.is_tls:
        handlers.append(urllib.request.HTTPSHandler(context=target.ssl_context()))
    question = urllib.request.Request(url, json.dumps(body).encode() if body is not None else None, headers)
    try:
        with urllib.request.build_opener(*handlers).open(question, timeout=timeout_s) as answer:
            return answer.status, parsed(answer.read(MAX_TOLD_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, parsed(error.read(MAX_TOLD_BYTES))
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            reason = f"{reason.verify_message} (--insecure takes any certificate)"
        raise BenchError(f"{target.root} cannot be reached: {reason}") from None
    except http.client.HTTPException as error:
        raise BenchError(f"{target.root} does not speak HTTP: {str(error).strip() or type(error).__name__}") from None


def parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def said(answer: Any) -> str:
    """The server's own error message."""
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        return str(answer["error"].get("message", answer["error"]))
    return str(answer)[:200]
