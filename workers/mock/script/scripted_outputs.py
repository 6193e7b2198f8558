"""The outputs of a script: the rule whose last match ends closest to the end of the prompt answers."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.text.added_tokens import add_missing
from slipstream.router.text.detokenizer import PieceTable
from slipstream.router.text.tokenizer_files import TokenizerFiles, load_tokenizer
from slipstream.workers.interface.engine import EngineRequestError
from slipstream.workers.mock.script.exact_tokens import ExactTokens
from slipstream.workers.mock.script.script_file import Script, ScriptError
from slipstream.workers.mock.script.script_rule import Reply, RuleMatch, ScriptRule
from slipstream.workers.models.directory.end_tokens import end_token_ids

MATCH_TIMEOUT_S = 1.0  # of all rules on one prompt; meanwhile the worker does nothing else


@dataclass(frozen=True, slots=True)
class ScriptedOutput:
    """`token_ids`, and then end tokens for ever."""

    token_ids: tuple[int, ...]
    end_token_id: int

    def token_at(self, position: int) -> int:
        return self.token_ids[position] if position < len(self.token_ids) else self.end_token_id


class ScriptedOutputs:
    """`OutputPolicy` of a script. Rules see the whole prompt as text, with its special tokens.

    The last message is at the end of a prompt in every chat template, but what follows it, and how turns begin,
    differs. So no turns are looked for: of all rules, that counts whose last match ends closest to the end of the
    prompt. Among rules that end at the same place the first one counts. Grammars are ignored.
    """

    serves_grammars = True

    def __init__(
        self, script: Script, tokenizer: tokenizers.Tokenizer, exact: ExactTokens, ends: tuple[int, ...]
    ) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._exact = exact
        self._end_token_id = ends[0]
        self.end_token_ids = frozenset(ends)

    @classmethod
    def load(cls, script: Script, model_dir: Path) -> ScriptedOutputs:
        """Raises ScriptError if the model directory has no tokenizer or no end token, or if its vocabulary cannot write
        a reply."""
        try:
            files = TokenizerFiles.read(model_dir)
            tokenizer, spec = load_tokenizer(files.tokenizer_json), json.loads(files.tokenizer_json)
            add_missing(tokenizer, spec, files.config)
            exact = ExactTokens(tokenizer, PieceTable(tokenizer, spec.get("decoder"), ()))
            ends = tuple(i for i in end_token_ids(model_dir) if tokenizer.id_to_token(i) is not None)
        except (OSError, ValueError) as error:
            raise ScriptError(f"the tokenizer of {model_dir} cannot be used: {error}") from error
        if not ends:
            raise ScriptError(f"{model_dir} names no end token, which every answer needs")
        outputs = cls(script, tokenizer, exact, ends)
        for name, reply in (("default", script.default), *((rule.name, rule.reply) for rule in script.rules)):
            try:
                outputs._output(reply.filled(lambda _: ""))
            except ValueError as error:
                raise ScriptError(f"{script.path}: {name}.reply: {error}") from error
        return outputs

    def output_of(self, prompt_ids: bytes) -> ScriptedOutput:
        """Raises EngineRequestError, which names the rule, if matching takes too long, or if the vocabulary cannot
        write what the reply takes from the prompt."""
        prompt: str = self._tokenizer.decode(list(unpack_ids(prompt_ids)), skip_special_tokens=False)
        found = self._last_match(prompt)
        if found is None:
            return self._output(self._script.default)
        rule, match = found
        try:
            return self._output(rule.reply.filled(match.group))
        except ValueError as error:
            raise EngineRequestError("script", f"{rule.name}.reply: {error}") from error

    def _last_match(self, prompt: str) -> tuple[ScriptRule, RuleMatch] | None:
        found: tuple[ScriptRule, RuleMatch] | None = None
        until_s = time.monotonic() + MATCH_TIMEOUT_S
        for rule in self._script.rules:
            try:
                match = rule.last_match(prompt, max(until_s - time.monotonic(), 0.01))
            except TimeoutError:
                reason = f"{rule.name}.match: looking for it took more than {MATCH_TIMEOUT_S:g} s"
                raise EngineRequestError("script", reason) from None
            if match is not None and (found is None or match.end > found[1].end):
                found = rule, match
        return found

    def _output(self, reply: Reply) -> ScriptedOutput:
        encode = self._exact.encode if reply.cuts == "tokens" else self._exact.characters
        return ScriptedOutput(tuple(i for piece in reply.pieces for i in encode(piece)), self._end_token_id)
