"""An extension of the router: a path of its own, a hook before requests and one after them.

    PYTHONPATH=docs/examples slipstream serve summaries.yaml

with `router: {extensions: {"summaries:Summaries": {max_chars: 20000}}}` in the configuration. A package names its class
as an entry point of the group `slipstream.extensions`; then the entry point's name stands there.
"""

import json
import logging

from slipstream.router.extensions.extension import (
    CallRefusedError,
    EndedCall,
    Extension,
    ExtensionCall,
    ExtensionReply,
    ExtensionRoute,
)

log = logging.getLogger(__name__)


class Summaries(Extension):
    """`POST /v1/summaries` with `{"model": ..., "text": ...}`."""

    def __init__(self, settings):
        self._max_chars = int(settings.get("max_chars", 20_000))
        if self._max_chars < 1:
            raise ValueError(f"max_chars must be at least 1, got {self._max_chars}")

    def routes(self):
        return [ExtensionRoute("POST", "/v1/summaries", self.summarise)]

    async def summarise(self, call: ExtensionCall) -> ExtensionReply:
        asked = as_object(call.body)
        if not isinstance(asked.get("text"), str) or "model" not in asked:
            raise CallRefusedError(400, "'model' and 'text' are needed, and 'text' is a string.", "text_missing")
        if len(asked["text"]) > self._max_chars:
            raise CallRefusedError(413, f"'text' has more than {self._max_chars} characters.", "text_too_long")
        messages = [{"role": "user", "content": f"Summarise in one sentence: {asked['text']}"}]
        body = {"model": asked["model"], "messages": messages, "max_tokens": 60, "temperature": 0}
        reply = await call.ask("/v1/chat/completions", body)
        if reply.status != 200:
            return reply
        answer = json.loads(reply.body)["choices"][0]["message"]["content"]
        return ExtensionReply(json.dumps({"summary": answer}).encode())

    async def before(self, call: ExtensionCall) -> None:
        """No request without a user, and at most 256 tokens."""
        if call.path != "/v1/chat/completions":
            return
        body = as_object(call.body)
        if not body.get("user"):
            raise CallRefusedError(400, "'user' is required here.", "user_required")
        asked = body.get("max_tokens")
        if asked is None or (isinstance(asked, int) and asked > 256):  # what is no number is refused by the router
            call.body = json.dumps({**body, "max_tokens": 256}).encode()

    def after(self, ended: EndedCall) -> None:
        log.info("%s %s: %d after %.3f s", ended.call.method, ended.call.path, ended.status, ended.seconds)


def as_object(body: bytes) -> dict:
    """A client's mistake is a 400; any other exception would be a 500."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise CallRefusedError(400, f"The body is not valid JSON: {error}.", "invalid_json") from error
    if not isinstance(value, dict):
        raise CallRefusedError(400, "The body is not a JSON object.", "invalid_json")
    return value
