"""Goes on with a rendering of a conversation where an earlier one of its beginning has stopped.

    system, tools  |  message 0 .. k-1, rendered before  |  message k .. n-1  |  what begins the answer
         pre       |            left out                 |        written now

Most templates write a conversation in one loop over its messages. What the loop writes for a message depends on that
message, on the variables that it uses, on namespaces that it changes, and on what it looks at beside: `loop.last`, the
message before, the next one. So a template's syntax tree is changed in two ways: the loop's messages come from here,
and `loop` is a `LoopView`. Then it is known for each message how far the loop has looked, and what its namespaces were.

A rendering goes on from message k, if

- all that the loop looked at up to there is the same as before, compared as it would be written;
- the variables had the same values when the loop began;
- what was written before the loop is the same;
- the namespaces are set to what they were then.

Templates in which this cannot be known (`cannot_resume`) are rendered as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, Undefined, nodes, pass_context
from jinja2.runtime import Context, Macro
from jinja2.utils import Namespace

from slipstream.router.text.template.loop_view import LoopView, NotResumableError, Reach, WatchedMessages
from slipstream.router.text.template.steps import STEPS, StepsLeft

RUN = "run of the loop"  # the variable that holds it; no template can have one of this name
VIEW = "slipstream_loop"
NUM_BOUNDARIES = 4  # how many of the last messages a rendering may be resumed at
PURE_GLOBALS = frozenset({"range", "raise_exception", "namespace", "dict"})
IMPURE = frozenset({"lipsum", "strftime_now", "cycler", "joiner"})
Frozen = tuple[Any, ...]


class CannotResumeError(ValueError):
    """The template has no loop of which it is known what it depends on."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the loop stood before the message `at`. `depth` is the number of leading messages that it has looked at.
    `num_steps` were taken in it. `pre` was written before it."""

    at: int
    depth: int
    reach: int
    variables: Frozen
    namespaces: tuple[dict[str, Any] | None, ...]
    num_steps: int
    pre: str


@dataclass(slots=True)
class LoopRun:
    """One rendering: `parts` is what was written so far, without what is left out."""

    reach: Reach
    num_messages: int
    resumed: Checkpoint | None = None
    parts: list[str] = field(default_factory=list)
    num_pre_parts: int = 0
    has_begun: bool = False
    boundaries: deque[tuple[Checkpoint, int]] = field(default_factory=lambda: deque(maxlen=NUM_BOUNDARIES))

    @property
    def latest(self) -> tuple[Checkpoint, int] | None:
        """The last checkpoint that depends on no message to come, and the number of parts written before it."""
        for checkpoint, num_parts in reversed(self.boundaries):
            if checkpoint.depth <= self.num_messages:
                return checkpoint, num_parts
        return None


def make_resumable(program: nodes.Template, environment: Environment) -> None:
    """Changes the syntax tree. Raises CannotResumeError."""
    if next(program.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)), None):
        raise CannotResumeError("it consists of several templates")
    loops = top_loops(program.body)
    if not loops:
        raise CannotResumeError("it has no loop at its top")
    loop = max(loops, key=lambda one: sum(1 for _ in one.find_all(nodes.Node)))
    if loop.recursive or loop.test is not None or loop.else_ or not isinstance(loop.target, nodes.Name):
        raise CannotResumeError("its loop is of another kind")
    if next(loop.find_all((nodes.Macro, nodes.FilterBlock)), None):
        raise CannotResumeError("its loop defines macros")
    macros = {macro.name: macro for macro in program.body if isinstance(macro, nodes.Macro)}
    names, whole = names_in(loop.body, macros)
    rename_loop(loop.body)
    loop.target = nodes.Tuple([loop.target, nodes.Name(VIEW, "store")], "store")
    used = sorted(names - {loop.target.items[0].name, "loop", VIEW})  # type: ignore[attr-defined]
    arguments: list[nodes.Expr] = [nodes.Const(tuple(name in whole for name in used)), nodes.Const(tuple(used))]
    arguments += [nodes.Name(name, "load") for name in used]
    loop.iter = nodes.Filter(loop.iter, resumed.__name__, arguments, [], None, None, lineno=loop.lineno)
    environment.filters[resumed.__name__] = resumed


def top_loops(body: Iterable[nodes.Node]) -> list[nodes.For]:
    """The loops that write straight into the prompt."""
    loops: list[nodes.For] = []
    for node in body:
        if isinstance(node, nodes.For):
            loops.append(node)
        elif isinstance(node, nodes.If):
            loops += top_loops([*node.body, *node.elif_, *node.else_])
    return loops


def names_in(body: list[nodes.Node], macros: Mapping[str, nodes.Macro]) -> tuple[set[str], set[str]]:
    """The variables that are read in the loop and in macros that it may call; and those of them that are not only
    indexed. Raises CannotResumeError."""
    names: set[str] = set()
    whole: set[str] = set()
    left: list[nodes.Node] = list(body)
    seen: set[str] = set()
    while left:
        node = left.pop()
        indexed = set()
        for item in [node, *node.find_all(nodes.Getitem)]:
            if isinstance(item, nodes.Getitem) and not isinstance(item.arg, nodes.Slice):
                indexed.add(id(item.node))
        for name in [node, *node.find_all(nodes.Name)]:
            if not isinstance(name, nodes.Name) or name.ctx != "load":
                continue
            names.add(name.name)
            if id(name) not in indexed:
                whole.add(name.name)
            if name.name in macros and name.name not in seen:
                seen.add(name.name)
                left += [*macros[name.name].body, *macros[name.name].defaults]
        for used in [node, *node.find_all(nodes.Filter)]:
            if isinstance(used, nodes.Filter) and used.name == "random":
                raise CannotResumeError("its loop draws at random")
        if next(node.find_all(nodes.ContextReference), None) or next(
            node.find_all(nodes.DerivedContextReference), None
        ):
            raise CannotResumeError("its loop takes all variables")
    if names & IMPURE:
        raise CannotResumeError("its loop depends on more than the conversation")
    return names, whole


def rename_loop(body: Iterable[nodes.Node]) -> None:
    """`loop` becomes the view, except in loops within. Raises CannotResumeError for other uses than its fields."""
    for node in body:
        if isinstance(node, nodes.For):
            rename_loop([node.iter])
            if next((name for name in loop_names(node.else_)), None) is not None:
                raise CannotResumeError("it uses `loop` behind a loop")
            continue
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop":
            if node.attr not in LoopView.FIELDS:
                raise CannotResumeError(f"it uses loop.{node.attr}")
            node.node.name = VIEW
            continue
        if isinstance(node, nodes.Name) and node.name == "loop":
            raise CannotResumeError("it uses `loop` itself")
        rename_loop(node.iter_child_nodes())


def loop_names(body: Iterable[nodes.Node]) -> Iterator[nodes.Name]:
    for node in body:
        if isinstance(node, nodes.Name) and node.name == "loop":
            yield node
        else:
            yield from loop_names(node.iter_child_nodes())


@pass_context
def resumed(context: Context, items: Any, whole: tuple[bool, ...], names: tuple[str, ...], *values: Any) -> Any:
    """The messages of the loop, each with its view."""
    run: LoopRun = context[RUN]
    steps: StepsLeft = context[STEPS]
    if type(items) is not WatchedMessages or run.has_begun:
        raise NotResumableError("the loop is not over the messages")
    run.has_begun = True
    num_items = list.__len__(items)
    steps.take(1 + num_items)
    variables = tuple(
        frozen(value, is_whole, name, context) for value, is_whole, name in zip(values, whole, names, strict=True)
    )
    return messages_from(run, items, num_items, steps, variables, [v if type(v) is Namespace else None for v in values])


def messages_from(
    run: LoopRun,
    items: WatchedMessages,
    num_items: int,
    steps: StepsLeft,
    variables: Frozen,
    namespaces: list[Namespace | None],
) -> Iterator[tuple[Any, LoopView]]:
    reach, offset, begin = run.reach, items.offset, 0
    pre = "".join(run.parts)
    run.parts[:] = [pre]
    steps_before = steps.left
    reach.highest = -1
    if run.resumed is not None:
        point = run.resumed
        begin = point.at - offset
        if point.variables != variables or point.pre != pre or not 0 <= begin <= num_items:
            raise NotResumableError("what precedes the loop has changed")
        for namespace, kept in zip(namespaces, point.namespaces, strict=True):
            if namespace is not None and kept is not None:
                attributes_of(namespace).clear()
                attributes_of(namespace).update(kept)
        steps.take(point.num_steps)
        reach.highest = point.reach

    def note(at: int) -> None:
        kept = tuple(None if one is None else plain_attributes(one) for one in namespaces)
        depth = max(offset + at, reach.highest + 1)
        num_steps = steps_before - steps.left
        run.boundaries.append(
            (Checkpoint(offset + at, depth, reach.highest, variables, kept, num_steps, pre), len(run.parts))
        )

    for at in range(begin, num_items):
        if at > begin and at > num_items - NUM_BOUNDARIES:
            note(at)
        yield list.__getitem__(items, at), LoopView(items, num_items, at)
    note(num_items)


def frozen(value: Any, is_whole: bool, name: str, context: Context) -> Any:
    """A value in a form that is equal if, and only if, whatever is done with the value is the same. Raises
    NotResumableError."""
    kind = type(value)
    if kind is str or value is None or kind is bool or kind is int or kind is float:
        return kind, repr(value) if kind is float else value
    if isinstance(value, Undefined):
        return ("undefined",)
    if kind is Namespace:
        return kind, tuple((key, frozen(item, True, "", context)) for key, item in attributes_of(value).items())
    if kind is WatchedMessages:
        if is_whole:
            raise NotResumableError(f"the loop looks at all of {name}")
        return kind, value.offset
    if kind is Macro:
        return kind, value.name
    if name in PURE_GLOBALS and value is context.environment.globals.get(name):
        return "global", name
    if is_json(value):
        return kind, repr(value)
    raise NotResumableError(f"the loop uses {name}")


def is_json(value: Any) -> bool:
    """Whether a value is made of lists, objects, texts and numbers alone."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and is_json(item) for key, item in value.items())
    if kind is list or kind is tuple:
        return all(map(is_json, value))
    return value is None or kind is str or kind is bool or kind is int or kind is float


def attributes_of(namespace: Namespace) -> dict[str, Any]:
    attributes: dict[str, Any] = namespace._Namespace__attrs
    return attributes


def plain_attributes(namespace: Namespace) -> dict[str, Any]:
    """Raises NotResumableError if one may change by itself."""
    kept = dict(attributes_of(namespace))
    for name, value in kept.items():
        if not (value is None or isinstance(value, str | bool | int | float)):
            raise NotResumableError(f"a namespace holds {name}")
    return kept
