"""Lists of words as `tensorrtllm` has them in one tensor: [[tokens of all words], [where each word ends]], each padded.

[[9906, 1917, 42, 0],
 [   2,    3, -1, -1]]        the words are (9906, 1917) and (42,)
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.language_backends.generation.tensor_generation import TokenWords
from slipstream.router.tensors.infer_error import InferError


def words_of(name: str, values: Sequence[int]) -> TokenWords:
    """`values` are both lists, one behind the other. Raises InferError."""
    size = len(values) // 2
    token_ids, ends = values[:size], values[size:]
    words, begin = [], 0
    for end in ends:
        if end < 0:
            break
        if not begin < end <= size:
            if end == begin == 0:  # padded with zeros
                break
            raise InferError(f"'{name}' has a word that ends at {end}, behind {begin}; there are {size} tokens")
        words.append(tuple(token_ids[begin:end]))
        begin = end
    return tuple(words)
