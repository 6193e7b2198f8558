"""What OpenAI's endpoints need of models that no workers serve, such as tensor models."""

from __future__ import annotations

from typing import Any, Protocol

from slipstream.router.access.caller import Caller


class OtherModels(Protocol):
    """They have names of their own beside those of the catalog."""

    def cards(self, caller: Caller) -> list[dict[str, Any]]:
        """What `/v1/models` shows of those that the caller may use."""
