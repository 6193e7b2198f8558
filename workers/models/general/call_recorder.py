"""Finds out what a model asks of its attention function, by running it once over a few tokens.

transformers models build their masks and compute attention through two registries of functions. For one pass, both
have functions of ours: the mask function returns a token that says which keys are visible, and the attention function
writes down what it gets, with that token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.workers.models.general.attention.attention_call import (
    AttentionCall,
    AttentionCalls,
    NoDecoderError,
    NotFlatError,
    Visibility,
)

PROBE = 1 << 18  # positions: a window that is longer than this is none
NUM_COMPARED = 96  # positions, close together and far apart, at which a mask is compared with what we take it for
KNOWN_TENSORS = frozenset({"s_aux", "position_ids", "cache_position"})  # arguments that we understand or need not


class NoNumbersError(RuntimeError):
    """The model was run without numbers (on the meta device), and looks at some."""


class MaskToken(Tensor):
    """Stands for a mask of one kind of visibility."""

    visibility: Visibility

    @staticmethod
    def of(visibility: Visibility) -> MaskToken:
        token = torch.zeros(1, 1, 1, 1).as_subclass(MaskToken)
        token.visibility = visibility
        return token


class CallRecorder:
    """Records the calls of one pass. `attention` and `mask` are what to register."""

    def __init__(self) -> None:
        self._calls: list[AttentionCall] = []
        # Keys and values of each stored layer, to recognise those that are read once more. Some models use keys twice,
        # with other values (DiffLlama): that is two layers to us.
        self._stored: list[tuple[Tensor, Tensor]] = []
        self.modules: list[nn.Module] = []

    @property
    def calls(self) -> AttentionCalls:
        """Raises NotFlatError if there were none."""
        if not self._calls:
            raise NotFlatError("it does not use the attention interface of transformers")
        return AttentionCalls(tuple(self._calls))

    def mask(self, *, mask_function: Callable[..., Any], device: torch.device, **kwargs: Any) -> MaskToken:
        """The function for `AttentionMaskInterface`. Raises NotFlatError if we do not know the mask's form, and
        NoNumbersError if it cannot be seen on the meta device."""
        del kwargs
        try:
            return MaskToken.of(visibility_of(mask_function))
        except NotFlatError as error:
            if device.type == "meta" and error.__cause__ is not None:  # it could not be computed
                raise NoNumbersError(str(error)) from error
            raise

    def attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: object, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """The function for `AttentionInterface`. Returns zeros."""
        if unknown := [
            name
            for name, given in kwargs.items()
            if isinstance(given, Tensor) and given.ndim and name not in KNOWN_TENSORS
        ]:
            raise NotFlatError(f"its attention takes {', '.join(unknown)}, which is not supported")
        if query.ndim != 4 or query.shape[2] != key.shape[2]:
            raise NotFlatError("it attends to more than its own tokens (cross-attention, a memory or a prefix)")
        window = kwargs.get("sliding_window")
        if attention_mask is None:
            if not kwargs.get("is_causal", getattr(module, "is_causal", True)):
                raise NotFlatError("it attends to later tokens, too: it is no decoder (is_decoder, is_causal)")
            visibility = Visibility(window)
        elif isinstance(attention_mask, MaskToken) and attention_mask.numel() == 1:  # else it was added to something
            visibility = getattr(attention_mask, "visibility", None) or Visibility(window)
        else:
            raise NotFlatError("it makes attention masks of its own")
        stored = ((at, keys, values) for at, (keys, values) in enumerate(self._stored))
        layer = next((at for at, keys, values in stored if keys is key and values is value), None)
        stores = layer is None
        if layer is None:
            layer = len(self._stored)
            self._stored.append((key, value))
        scale = kwargs.get("scaling")
        self._calls.append(
            AttentionCall(
                num_heads=query.shape[1],
                num_kv_heads=key.shape[1],
                key_dim=key.shape[3],
                value_dim=value.shape[3],
                scale=float(query.shape[3] ** -0.5 if scale is None else scale),
                softcap=kwargs.get("softcap"),
                has_sinks=kwargs.get("s_aux") is not None,
                visibility=visibility,
                layer=layer,
                stores=stores,
            )
        )
        self.modules.append(module)
        shape = (query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        return torch.zeros(shape, dtype=query.dtype, device=query.device), None


def visibility_of(mask_function: Callable[..., Any]) -> Visibility:
    """What a mask function of transformers allows: a function of batch, head, query and key index. Raises
    NotFlatError, and NoDecoderError if a token sees even those far behind it."""
    if bool(_seen(mask_function, torch.tensor([[0]]), torch.tensor([[PROBE]]))):
        raise NoDecoderError("it attends to later tokens, too: it is no decoder (is_decoder, is_causal)")
    seen = _seen(mask_function, torch.tensor([[PROBE]]), torch.arange(PROBE + 1)[None])[0]
    first = int(seen.long().argmax())
    found = Visibility()
    if first > 0:
        next_seen = _seen(mask_function, torch.tensor([[PROBE + 1]]), torch.tensor([[first]]))
        found = Visibility(window=PROBE - first + 1)
        if bool(next_seen):  # it stands still until the next chunk
            size = _seen(mask_function, torch.arange(first, first + PROBE + 1)[:, None], torch.tensor([[first]]))
            found = Visibility(chunk=int(size.long().sum()))
    span = found.span or 1
    near, far = torch.arange(NUM_COMPARED // 3), torch.arange(NUM_COMPARED // 3) * 97
    at = torch.cat((near, far, span - NUM_COMPARED // 6 + near)).clamp_min(0)
    first_keys = torch.tensor([found.first_key(int(position)) for position in at])
    expected = (at[None, :] <= at[:, None]) & (at[None, :] >= first_keys[:, None])
    if not torch.equal(_seen(mask_function, at[:, None], at[None, :]), expected):
        raise NotFlatError("it makes attention masks of a form that is not known")
    return found


def _seen(mask_function: Callable[..., Any], queries: Tensor, keys: Tensor) -> Tensor:
    """Which of `keys` [1, n] each of `queries` [m, 1] sees: [m, n]."""
    try:
        seen = torch.as_tensor(mask_function(0, 0, queries, keys))
    except (IndexError, RuntimeError, TypeError) as error:
        raise NotFlatError("it makes attention masks of a form that is not known") from error
    if seen.is_meta:
        raise NoNumbersError("a mask depends on numbers")
    return seen.expand(queries.shape[0], keys.shape[1])
