"""Tries grammars in a separate process, the only one that dies if a grammar takes too long or too much memory. JSON
schemas are also rewritten there (`json_schema`).

    Trials --[kind, spec, style], a line of JSON--> python -m slipstream.router.structured_output.grammar_trial
           <--[spec for workers, or null, complaint or null]--

llguidance counts most of its work and stops by itself, but not all of it (intersected `multipleOf`s become one
automaton with the product of their states), and a call into it cannot be interrupted from another thread. The kernel,
however, can end the process: by SIGPROF after `MAX_CPU_S` of CPU time for one grammar, and by refusing more than
`MAX_BYTES` of address space. A process serves grammars until one of them ends it; the next one starts another process.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import IO, NamedTuple

from slipstream.router.protocol.grammar import DEFAULT_JSON, GrammarError, JsonStyle, complaint
from slipstream.router.protocol.messages import GrammarSpec

MAX_CPU_S = 1.0
MAX_WALL_S = 60.0  # also ended after this, on a machine too busy to give it its CPU time
MAX_BYTES = 2 << 30
NICENESS = 5  # streams go first
TOO_COMPLEX = f"it is too complex: trying it takes more than {MAX_CPU_S:g} s or {MAX_BYTES >> 20} MiB"


class GrammarVerdict(NamedTuple):
    """The grammar in the form for workers, or else the reason of its refusal."""

    grammar: GrammarSpec | None
    fault: str | None = None


class TrialError(RuntimeError):
    """Grammars cannot be tried on this machine at all."""


class GrammarTrials:
    """Owns the process. One caller at a time; `verdict` blocks. The process ends with this object or the
    interpreter."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._finish: Callable[[], object]  # ends that process

    def verdict(self, grammar: GrammarSpec, style: JsonStyle = DEFAULT_JSON) -> GrammarVerdict:
        """The verdict on the grammar of a request. Raises TrialError."""
        process = self._process or self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([*grammar, style]).encode() + b"\n")
            process.stdin.flush()
            answer = _line(process.stdout)
        except BrokenPipeError:
            answer = b""
        if answer:
            spec, fault = json.loads(answer)
            return GrammarVerdict(None if spec is None else GrammarSpec(grammar.kind, spec), fault)
        self._process = None
        process.kill()  # if it has not ended by itself
        self._finish()
        if process.returncode > 0:
            raise TrialError(f"grammars cannot be tried: the process that does it has ended with {process.returncode}")
        return GrammarVerdict(None, TOO_COMPLEX)

    def _begin(self) -> subprocess.Popen[bytes]:
        # The new process must find the same modules as this one.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-P", "-m", "slipstream.router.structured_output.grammar_trial"]
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        except OSError as error:
            raise TrialError(f"grammars cannot be tried: {error}") from error
        self._process, self._finish = process, weakref.finalize(self, _end, process)
        return process


def _line(stream: IO[bytes]) -> bytes:
    """The next line; empty if the other end has closed or is silent for too long."""
    poll = select.poll()  # select() fails for descriptors over 1023, and a front has one for each client
    poll.register(stream, select.POLLIN)
    return stream.readline() if poll.poll(1e3 * MAX_WALL_S) else b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Closes the process's input, upon which it ends, at the latest after the present grammar."""
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        try:
            stream.close()
        except BrokenPipeError:
            continue
    process.wait()


def verdict(grammar: GrammarSpec, style: JsonStyle) -> GrammarVerdict:
    """Tries a grammar. This may take for ever, or all memory."""
    # Only this process needs them.
    from slipstream.router.structured_output.json_grammar import json_grammar_spec
    from slipstream.router.structured_output.output_trial import complaint_of_output

    try:
        if grammar.kind == "output":
            fault = complaint_of_output(grammar.spec)
            return GrammarVerdict(None if fault is not None else grammar, fault)
        final = json_grammar_spec(grammar.spec, style) if grammar.kind == "json" else grammar
        fault = complaint(final)
    except GrammarError as error:
        return GrammarVerdict(None, str(error))
    except (MemoryError, RecursionError):
        return GrammarVerdict(None, TOO_COMPLEX)
    return GrammarVerdict(None, fault) if fault is not None else GrammarVerdict(final)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the parent; this process ends with it
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    for line in sys.stdin.buffer:
        kind, spec, style = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
        grammar, fault = verdict(GrammarSpec(kind, spec), JsonStyle(*style))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps([None if grammar is None else grammar.spec, fault]) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
