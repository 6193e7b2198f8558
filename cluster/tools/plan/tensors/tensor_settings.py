"""The settings of a tensor model that a plan varies, and the steps from one setting to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

DELAYS_US = (0, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
FEW = 4  # up to so many instances a step is one more


@dataclass(frozen=True, slots=True)
class TensorSettings:
    """`instances` are those of the first group, on each of its devices. `delay_us` None: without dynamic batching.
    `max_batch_size` 0: the model has no batches."""

    instances: int
    max_batch_size: int = 0
    delay_us: int | None = None
    preferred: tuple[int, ...] = ()

    @classmethod
    def of_config(cls, config: Any) -> TensorSettings:
        """From a complete `ModelConfig`, in which the one preferred size is the largest if the file has none."""
        batching = config.dynamic_batching
        is_dynamic = config.HasField("dynamic_batching")
        preferred = tuple(batching.preferred_batch_size) if is_dynamic else ()
        return cls(
            instances=config.instance_group[0].count if config.instance_group else 1,
            max_batch_size=config.max_batch_size,
            delay_us=batching.max_queue_delay_microseconds if is_dynamic else None,
            preferred=() if preferred == (config.max_batch_size,) else preferred,
        )

    def set_in(self, config: Any) -> None:
        """Writes them into a `ModelConfig`, complete or not. What they say nothing about stays."""
        if config.instance_group:
            config.instance_group[0].count = self.instances
        elif self.instances != 1:
            config.instance_group.add(count=self.instances)
        if config.max_batch_size != self.max_batch_size:
            config.max_batch_size = self.max_batch_size
        if self.delay_us is not None:
            batching = config.dynamic_batching
            batching.SetInParent()
            batching.max_queue_delay_microseconds = self.delay_us
            del batching.preferred_batch_size[:]
            batching.preferred_batch_size.extend(self.preferred)

    def __str__(self) -> str:
        words = [f"{self.instances} instance{'s' if self.instances > 1 else ''}"]
        if self.max_batch_size:
            words.append(f"batches up to {self.max_batch_size}")
        if self.delay_us is None:
            words += ["no dynamic batching"] if self.max_batch_size else []
        else:
            words.append(f"delay {self.delay_us} us")
            words += [f"preferred {', '.join(map(str, self.preferred))}"] if self.preferred else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class SettingSpace:
    """`largest_batch` is the `max_batch_size` that the model allows. Without `tunes_batching` only instances are
    varied."""

    max_instances: int
    largest_batch: int = 0
    max_delay_us: int = 0
    tunes_batching: bool = True


Step = Callable[[TensorSettings, SettingSpace], TensorSettings | None]


def more_instances(at: TensorSettings, space: SettingSpace) -> TensorSettings | None:
    count = at.instances + 1 if at.instances < FEW else at.instances * 3 // 2
    return replace(at, instances=count) if count <= space.max_instances else None


def fewer_instances(at: TensorSettings, space: SettingSpace) -> TensorSettings | None:
    count = at.instances - 1 if at.instances <= FEW else at.instances * 2 // 3
    return replace(at, instances=count) if count else None


def dynamic_batching(at: TensorSettings, space: SettingSpace) -> TensorSettings | None:
    return replace(at, delay_us=0) if at.delay_us is None and at.max_batch_size > 1 else None


def longer_delay(at: TensorSettings, space: SettingSpace) -> TensorSettings | None:
    if at.delay_us is None:
        return None
    longer = next((delay for delay in DELAYS_US if delay > at.delay_us), None)
    return replace(at, delay_us=longer) if longer is not None and longer <= space.max_delay_us else None


def shorter_delay(at: TensorSettings, space: SettingSpace) -> TensorSettings | None:
    if not at.delay_us:
        return None
    return replace(at, delay_us=max(delay for delay in DELAYS_US if delay < at.delay_us))


def smaller_preferred(at: TensorSettings, space: SettingSpace) -> TensorSettings | None:
    """Half of the largest preferred size, which is a full batch without one. Without a delay it has no effect."""
    size = (max(at.preferred) if at.preferred else at.max_batch_size) // 2
    return replace(at, preferred=(size,)) if at.delay_us and size > 1 else None


def larger_preferred(at: TensorSettings, space: SettingSpace) -> TensorSettings | None:
    if not at.delay_us or not at.preferred:
        return None
    size = max(at.preferred) * 2
    return replace(at, preferred=(size,) if size < at.max_batch_size else ())


def smaller_batch(at: TensorSettings, space: SettingSpace) -> TensorSettings | None:
    return with_batch(at, at.max_batch_size // 2) if at.max_batch_size > 1 else None


def larger_batch(at: TensorSettings, space: SettingSpace) -> TensorSettings | None:
    size = at.max_batch_size * 2
    return with_batch(at, size) if 0 < size <= space.largest_batch else None


def with_batch(at: TensorSettings, size: int) -> TensorSettings:
    preferred = tuple(one for one in at.preferred if one < size)
    return replace(at, max_batch_size=size, preferred=preferred)


INSTANCES: tuple[Step, ...] = (more_instances, fewer_instances)
BATCHING: tuple[tuple[Step, ...], ...] = (
    (dynamic_batching,),
    (longer_delay, shorter_delay),
    (smaller_batch, larger_batch),
    (smaller_preferred, larger_preferred),
)
