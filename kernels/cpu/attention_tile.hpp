// Sizes and positions that the plan and the tiles agree on.
#pragma once

#include <algorithm>

#include "attention.hpp"

namespace slipstream {

// Contexts are cut here, and results put together in order, always: by several tiles or within one.
constexpr int kSegmentKeys = 1024;
constexpr int kTileRows = 96;  // of a tile with several queries: reading keys and values is little beside them

inline int group_size(const AttentionShape& shape) { return shape.num_heads / shape.kv.num_kv_heads; }

inline int queries_a_tile(const AttentionShape& shape) { return std::max(1, kTileRows / group_size(shape)); }

// Tiles with more rows leave their segments together: partial results take memory.
inline int max_split_rows(const AttentionShape& shape) { return std::max(16, group_size(shape)); }

// The first key that a query sees; it may lie before position 0.
inline int first_seen(const AttentionShape& shape, int position) {
  const int first = shape.window > 0 ? position - shape.window + 1 : 0;
  return shape.chunk > 0 ? std::max(first, position / shape.chunk * shape.chunk) : first;
}

// The first key that any query of a tile sees.
inline int first_key(const AttentionTile& tile, const AttentionShape& shape) {
  return std::max(first_seen(shape, tile.first_position), 0);
}

// Rows of values are rounded up to whole vectors.
inline int value_width(int value_dim) { return (value_dim + simd::kLanes - 1) / simd::kLanes * simd::kLanes; }

// What the rows of a tile have gathered over some segments: sums of values weighted by 2^(score - most), and the sums
// of these weights.
struct Gathered {
  float* values;  // [rows, value_width]
  float* most;    // [rows]
  float* total;   // [rows]
};

inline size_t gathered_floats(const AttentionShape& shape, int rows) {
  return static_cast<size_t>(rows) * static_cast<size_t>(value_width(shape.kv.value_dim) + 2);
}

inline Gathered gathered_at(float* memory, const AttentionShape& shape, int rows) {
  float* most = memory + static_cast<size_t>(rows) * static_cast<size_t>(value_width(shape.kv.value_dim));
  return {memory, most, most + rows};
}

}  // namespace slipstream
