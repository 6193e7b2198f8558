"""What the main loop of a chat template sees of a conversation: messages and `loop`, which note how far it looks."""

from __future__ import annotations

from typing import Any, NoReturn, SupportsIndex

from jinja2 import Undefined

WHOLE = 1 << 60  # how far something looks that depends on the number of messages


class NotResumableError(Exception):
    """The rendering cannot go on from an earlier one. No template sees it."""


class Reach:
    """The highest index of a message that the loop has looked at, its own messages apart."""

    __slots__ = ("highest",)

    def __init__(self) -> None:
        self.highest = -1

    def note(self, index: int) -> None:
        if index > self.highest:
            self.highest = index


class WatchedMessages(list[Any]):
    """The messages, or those from `offset` on. A list to templates; where one takes a single message by its index, that
    is noted, and anything else looks at all of them."""

    def __init__(self, messages: list[Any], reach: Reach, offset: int = 0) -> None:
        super().__init__(messages)
        self.reach = reach
        self.offset = offset

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        if isinstance(at, slice):
            self.reach.note(WHOLE)
            start = at.start or 0
            if at.stop is None and at.step in (None, 1) and type(start) is int and 0 <= start <= list.__len__(self):
                return WatchedMessages(list.__getitem__(self, at), self.reach, self.offset + start)
            return list.__getitem__(self, at)
        is_behind = type(at) is int and at >= 0
        self.reach.note(self.offset + int(at) if is_behind else WHOLE)
        return list.__getitem__(self, at)

    def __len__(self) -> int:
        self.reach.note(WHOLE)
        return list.__len__(self)

    def __iter__(self) -> Any:
        self.reach.note(WHOLE)
        return list.__iter__(self)


class LoopView:
    """`loop` for one message, as far as templates that can be resumed use it."""

    __slots__ = ("_messages", "_num_messages", "index0")

    FIELDS = frozenset({"index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem"})

    def __init__(self, messages: WatchedMessages, num_messages: int, index0: int) -> None:
        self._messages = messages
        self._num_messages = num_messages
        self.index0 = index0

    @property
    def index(self) -> int:
        return self.index0 + 1

    @property
    def first(self) -> bool:
        return self.index0 == 0

    @property
    def last(self) -> bool:
        self._look(self.index0 + 1)
        return self.index0 + 1 == self._num_messages

    @property
    def length(self) -> int:
        self._look(WHOLE)
        return self._num_messages

    @property
    def revindex(self) -> int:
        return self.length - self.index0

    @property
    def revindex0(self) -> int:
        return self.length - self.index0 - 1

    @property
    def previtem(self) -> Any:
        if not self.index0:
            return Undefined("there is no previous item")
        return list.__getitem__(self._messages, self.index0 - 1)

    @property
    def nextitem(self) -> Any:
        self._look(self.index0 + 1)
        if self.index0 + 1 == self._num_messages:
            return Undefined("there is no next item")
        return list.__getitem__(self._messages, self.index0 + 1)

    def _look(self, index: int) -> None:
        self._messages.reach.note(self._messages.offset + index)


class Unread(dict[str, Any]):
    """Stands for a message that was rendered before. Whatever looks into it cannot be resumed."""

    def __init__(self) -> None:
        super().__init__(unread="")  # what is empty may be passed over without a look

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotResumableError("the template looks at a message once more")

    __getitem__ = __contains__ = __iter__ = __len__ = __bool__ = __eq__ = __ne__ = __str__ = __repr__ = _refuse
    __hash__ = _refuse  # type: ignore[assignment]
    __or__ = __ror__ = __lt__ = __le__ = __gt__ = __ge__ = __reversed__ = __format__ = _refuse
    get = items = keys = values = copy = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()
