"""The kernels of `sampling`, which says how a token is found. Scores are [rows, vocab] float32; the row of a program is
`scores`, and `x` are its scores divided by the temperature, the highest 0.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sample_kernel(
    logits,  # [rows, vocab] float32
    token_ids,  # [rows] int32
    sound,  # [rows] int8
    temperatures,
    log_min_p,
    top_k,
    top_p,
    uniforms,
    vocab_size,
    row_stride,
    GREEDY: tl.constexpr,  # all rows are
    GREEDY_BELOW: tl.constexpr,
    SCAN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    scores = logits + row.to(tl.int64) * row_stride
    columns = tl.arange(0, SCAN)
    best = tl.full((SCAN,), float("-inf"), tl.float32)
    best_at = columns
    has_nan = tl.zeros((SCAN,), tl.int32)
    for start in range(0, vocab_size, SCAN):
        at = start + columns
        value = tl.load(scores + at, mask=at < vocab_size, other=float("-inf"))
        has_nan |= (value != value).to(tl.int32)
        best_at = tl.where(value > best, at, best_at)
        best = tl.where(value > best, value, best)
    highest = tl.max(best, axis=0)
    token = tl.min(tl.where(best == highest, best_at, vocab_size), axis=0)
    is_sound = (highest > float("-inf")) & (highest < float("inf")) & (tl.max(has_nan, axis=0) == 0)
    tl.store(sound + row, is_sound.to(tl.int8))
    tl.store(token_ids + row, tl.minimum(token, vocab_size - 1))
    if not GREEDY:
        temperature = tl.load(temperatures + row)
        if is_sound & (temperature >= GREEDY_BELOW):
            # A weight below exp(-100) changes no sum, not even of a whole vocabulary of them.
            floor = tl.maximum(tl.load(log_min_p + row), -100.0)
            drawn = _drawn(
                scores,
                vocab_size,
                highest,
                temperature,
                floor,
                tl.load(top_k + row),
                tl.load(top_p + row),
                tl.load(uniforms + row),
                SCAN,
                BLOCK,
            )
            tl.store(token_ids + row, drawn)


@triton.jit
def _drawn(
    scores, vocab_size, highest, temperature, floor, top_k, top_p, uniform, SCAN: tl.constexpr, BLOCK: tl.constexpr
):
    """The token drawn at `uniform`. Kept are those from `high` upwards, and from `low` to there up to id `last_tie`."""
    columns = tl.arange(0, SCAN)
    low, high, last_tie = floor, floor, vocab_size
    mass, count = _measured(scores, vocab_size, highest, temperature, low, high, last_tie, SCAN)
    if top_k < count:
        low, high, num_above, mass_above, num_between = _edge(
            scores, vocab_size, highest, temperature, floor, mass, count, top_k.to(tl.float64), False, BLOCK
        )
        num_ties = top_k - num_above
        if num_ties < num_between:
            last_tie = _place_of_tie(scores, vocab_size, highest, temperature, low, high, num_ties, BLOCK)
        mass, count = _measured(scores, vocab_size, highest, temperature, low, high, last_tie, SCAN)
    if top_p < 1.0:
        target = top_p * mass
        all_mass, all_count = _measured(scores, vocab_size, highest, temperature, floor, floor, vocab_size, SCAN)
        p_low, p_high, num_above, mass_above, num_between = _edge(
            scores, vocab_size, highest, temperature, floor, all_mass, all_count, target, True, BLOCK
        )
        # Of tokens with the weight of the edge the fewest that reach the target; at least one, as it is not above yet.
        weight = tl.exp(p_low).to(tl.float64)
        wanted = tl.maximum(tl.ceil((target - mass_above) / weight), 1.0)
        num_ties = tl.minimum(wanted, num_between.to(tl.float64)).to(tl.int32)
        if num_ties < num_between:
            last_tie = _place_of_tie(scores, vocab_size, highest, temperature, p_low, p_high, num_ties, BLOCK)
        elif p_low > low:
            last_tie = vocab_size  # the ties that top_k cut lie below
        # An edge below that of top_k is one that two sums of the same weights make by rounding.
        if p_low >= low:
            low, high = p_low, p_high
        mass, count = _measured(scores, vocab_size, highest, temperature, low, high, last_tie, SCAN)
    target = uniform * mass
    before = mass * 0.0
    drawn = vocab_size
    last_kept = 0
    start = 0
    while (drawn == vocab_size) & (start < vocab_size):
        at = start + columns
        x = _relative(scores, at, vocab_size, highest, temperature)
        kept = (x >= high) | ((x >= low) & (at <= last_tie))
        weights = tl.where(kept, tl.exp(x), 0.0).to(tl.float64)
        block_mass = tl.sum(weights, axis=0)
        last_kept = tl.maximum(last_kept, tl.max(tl.where(weights > 0, at, 0), axis=0))
        if before + block_mass > target:
            cumulated = before + tl.cumsum(weights, axis=0)
            found = tl.min(tl.where((cumulated > target) & (weights > 0), at, vocab_size), axis=0)
            # The two sums are rounded differently: what falls off the block's end is its last.
            drawn = tl.minimum(found, last_kept)
        before += block_mass
        start += SCAN
    return tl.minimum(drawn, last_kept)


@triton.jit
def _edge(
    scores,
    vocab_size,
    highest,
    temperature,
    floor,
    all_mass,
    all_count,
    target,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The last token, best first, without which the mass (or count) is below `target`: it lies from `low` to below
    `high`, alone or with its equals. Returns low, high, the count and mass from `high` upwards, the count between."""
    steps = tl.arange(0, 8)
    low, high = floor, highest * 0.0 + 1.0  # the highest score is 0 by definition
    count_low, count_high = all_count, all_count * 0
    mass_high = all_mass * 0.0
    is_open = count_low > 1
    while is_open:
        # The first pass ends with the best token alone, so that an edge there is not approached by ever smaller steps.
        even = low + (high - low) * (steps / 8.0)
        from_best = tl.where(steps == 7, 0.0, low - low * (steps / 7.0))
        thresholds = tl.where(high > 0.0, from_best, even)
        masses = tl.zeros((BLOCK, 8), tl.float64)
        counts = tl.zeros((BLOCK, 8), tl.int32)
        for start in range(0, vocab_size, BLOCK):
            x = _relative(scores, start + tl.arange(0, BLOCK), vocab_size, highest, temperature)
            above = x[:, None] >= thresholds[None, :]
            masses += tl.where(above, tl.exp(x).to(tl.float64)[:, None], 0.0)
            counts += above.to(tl.int32)
        mass_above, count_above = tl.sum(masses, axis=0), tl.sum(counts, axis=0)
        if BY_MASS:
            reaches = (mass_above >= target) | (steps == 0)
        else:
            reaches = (count_above.to(tl.float64) >= target) | (steps == 0)
        inside = tl.sum(reaches.to(tl.int32), axis=0) - 1  # reached up to this threshold
        is_low, is_high = steps == inside, steps == inside + 1
        low = tl.sum(tl.where(is_low, thresholds, 0.0), axis=0)
        count_low = tl.sum(tl.where(is_low, count_above, 0), axis=0)
        if inside < 7:
            high = tl.sum(tl.where(is_high, thresholds, 0.0), axis=0)
            count_high = tl.sum(tl.where(is_high, count_above, 0), axis=0)
            mass_high = tl.sum(tl.where(is_high, mass_above, 0.0), axis=0)
        middle = low + (high - low) * 0.5
        is_open = (count_low - count_high > 1) & (middle > low) & (middle < high) & (low < 0.0)
    return low, high, count_high, mass_high, count_low - count_high


@triton.jit
def _place_of_tie(scores, vocab_size, highest, temperature, low, high, number, BLOCK: tl.constexpr):
    """The id of the `number`-th token from `low` to below `high`."""
    seen = 0
    place = vocab_size
    start = 0
    while (place == vocab_size) & (start < vocab_size):
        at = start + tl.arange(0, BLOCK)
        x = _relative(scores, at, vocab_size, highest, temperature)
        ties = ((x >= low) & (x < high)).to(tl.int32)
        place = tl.min(tl.where((seen + tl.cumsum(ties, axis=0) == number) & (ties > 0), at, vocab_size), axis=0)
        seen += tl.sum(ties, axis=0)
        start += BLOCK
    return place


@triton.jit
def _measured(scores, vocab_size, highest, temperature, low, high, last_tie, SCAN: tl.constexpr):
    """Mass and count of the tokens that are kept (see `_drawn`)."""
    masses = tl.zeros((SCAN,), tl.float64)
    counts = tl.zeros((SCAN,), tl.int32)
    for start in range(0, vocab_size, SCAN):
        at = start + tl.arange(0, SCAN)
        x = _relative(scores, at, vocab_size, highest, temperature)
        kept = (x >= high) | ((x >= low) & (at <= last_tie))
        masses += tl.where(kept, tl.exp(x), 0.0).to(tl.float64)
        counts += kept.to(tl.int32)
    return tl.sum(masses, axis=0), tl.sum(counts, axis=0)


@triton.jit
def _relative(scores, at, vocab_size, highest, temperature):
    """Scores divided by the temperature, the highest 0."""
    value = tl.load(scores + at, mask=at < vocab_size, other=float("-inf"))
    return tl.div_rn(value - highest, temperature)


@triton.jit(do_not_specialize=["num_entries"])
def penalise_kernel(
    logits, rows, token_ids, counts, repetition, frequency, presence, row_stride, num_entries, BLOCK: tl.constexpr
):
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < num_entries
    row = tl.load(rows + entry, mask=inside, other=0)
    at = logits + row.to(tl.int64) * row_stride + tl.load(token_ids + entry, mask=inside, other=0)
    count = tl.load(counts + entry, mask=inside, other=0.0)
    factor = tl.load(repetition + row)
    score = tl.load(at, mask=inside, other=0.0)
    score = tl.where(score > 0, tl.div_rn(score, factor), score * factor)
    score -= tl.load(frequency + row) * count + tl.load(presence + row) * (count > 0).to(tl.float32)
    tl.store(at, score, mask=inside)


@triton.jit(do_not_specialize=["num_entries"])
def add_kernel(logits, rows, token_ids, values, row_stride, num_entries, BLOCK: tl.constexpr):
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < num_entries
    row = tl.load(rows + entry, mask=inside, other=0).to(tl.int64)
    at = logits + row * row_stride + tl.load(token_ids + entry, mask=inside, other=0)
    score = tl.load(at, mask=inside, other=0.0) + tl.load(values + entry, mask=inside, other=0.0)
    tl.store(at, score, mask=inside)
