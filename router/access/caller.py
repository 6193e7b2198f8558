"""The sender of an HTTP request, and what follows from it for the generation requests made of it."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.router.access.api_key import ApiKey
from slipstream.router.http.http_error import HttpError


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `key` None: there are no keys, and all callers may do everything."""

    key: ApiKey | None = None

    @property
    def is_admin(self) -> bool:
        return self.key is None or self.key.admin

    @property
    def name(self) -> str:
        return self.key.name if self.key is not None else ""

    @property
    def weight(self) -> float:
        return self.key.weight if self.key is not None else 1.0

    def tenant(self, user: str) -> str:
        """The tenant: that of the key or, if there are no keys, the `user` that the client names."""
        return self.key.tenant if self.key is not None else user

    def may_see(self, tenant: str) -> bool:
        """Whether this caller may see requests of that tenant."""
        return self.key is None or self.key.admin or self.key.tenant == tenant

    def own(self, name: str) -> str:
        """Turns a name that the client chose (a cache salt, a session) into one that no other tenant can produce. The
        length in front keeps `ab` + `c` apart from `a` + `bc`; names that keys share have a different beginning from
        those that a tenant owns."""
        if self.key is None:
            return name
        if self.key.shared_cache:
            return f"shared:{name}" if name else ""
        return f"tenant:{len(self.key.tenant)}:{self.key.tenant}:{name}"

    def may_use(self, model: str) -> bool:
        """Whether the key allows the model of this name; aliases are no names here."""
        return self.key is None or self.key.models is None or model in self.key.models

    def check(self, model: str, priority: int) -> None:
        """Raises HttpError 403 if the key does not allow this model or this priority."""
        key = self.key
        if key is None:
            return
        if not self.may_use(model):
            raise forbidden(f"This API key may not use the model {model!r}.", "model", "model_not_allowed")
        if priority < key.max_priority:
            message = f"The most urgent 'priority' that this API key may ask for is {key.max_priority}, not {priority}."
            raise forbidden(message, "priority", "priority_not_allowed")


ANYBODY = Caller()


def forbidden(message: str, param: str | None, code: str) -> HttpError:
    return HttpError(403, message, kind="permission_error", param=param, code=code)
