"""Lists of words as `tensorrtllm` has them in one tensor: [[tokens of all words], [where each word ends]], each padded.

[[9906, 1917, 42, 0],
 [   2,    3, -1, -1]]        the words are (9906, 1917) and (42,)
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.language_backends.generation.tensor_generation import TokenWords
from slipstream.router.tensors.infer_error import InferError

MAX_TOKENS = 4096  # of all words of a list: each token of an output is compared with each word


def words_of(name: str, values: Sequence[int]) -> TokenWords:
    """`values` are both lists, one behind the other. Raises InferError."""
    size = len(values) // 2
    token_ids, ends = values[:size], values[size:]
    if size > MAX_TOKENS and ends[MAX_TOKENS] > 0:  # else the rest is padding
        raise InferError(f"'{name}' has more than {MAX_TOKENS} words")
    words, begin = [], 0
    for end in ends:
        if end < 0:
            break
        if not begin < end <= size:
            if end == begin == 0:  # padded with zeros
                break
            raise InferError(f"'{name}' has a word that ends at {end}, behind {begin}; there are {size} tokens")
        if end > MAX_TOKENS:
            raise InferError(f"'{name}' has words of more than {MAX_TOKENS} tokens")
        words.append(tuple(token_ids[begin:end]))
        begin = end
    return tuple(words)
