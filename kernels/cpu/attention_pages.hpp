// Reading a block of keys and values out of the pages into the form that products need:
//
//     keys    [steps, kBlockKeys] words        a word holds one number, or two neighbouring ones of the same key
//     values  [keys / kPerWord, width] words   a word holds one number, or those of two neighbouring keys
//
// Codes of quantised pages become numbers of the model's dtype, exactly; their scales are kept apart, a key's for its
// scores, a value's for its weights.
#pragma once

#include <algorithm>

#include "attention.hpp"
#include "attention_block.hpp"
#include "vector_codes.hpp"

namespace slipstream {

constexpr int kMaxHeadDim = 256;

struct KeyValueBlock {
  alignas(64) float keys[kMaxHeadDim * kBlockKeys];
  alignas(64) float values[kMaxHeadDim * kBlockKeys];
  alignas(64) float key_scales[kBlockKeys];
  alignas(64) float value_scales[kBlockKeys];
};

// Where one head of one sequence lies in a layer's pages.
struct PagedHead {
  const std::byte* layer;
  const int32_t* pages;  // the sequence's row of the page table
  int kv_head;
  KvShape shape;
  size_t head_bytes;
};

// The rows of a block's keys and values. Rows outside first .. last (counted from position 0) are zeros from elsewhere.
template <class Code>
struct BlockRows {
  const Code* keys[kBlockKeys];
  const Code* values[kBlockKeys];
};

alignas(64) inline constexpr float kZeroRow[kMaxHeadDim] = {};

template <class Code>
void find_rows(const PagedHead& head, int block_start, int first, int last, BlockRows<Code>& rows, float* key_scales,
               float* value_scales) {
  const int page_tokens = head.shape.page_tokens;
  const int head_dim = head.shape.head_dim;
  const auto* zeros = reinterpret_cast<const Code*>(kZeroRow);
  int key = 0;
  for (; block_start + key < first; ++key) {
    rows.keys[key] = rows.values[key] = zeros;
    key_scales[key] = value_scales[key] = 0;
  }
  while (key < kBlockKeys && block_start + key < last) {
    const int position = block_start + key;
    const int page = position / page_tokens;
    const int offset = position - page * page_tokens;
    const size_t run = static_cast<size_t>(head.pages[page]) * static_cast<size_t>(head.shape.num_kv_heads) +
                       static_cast<size_t>(head.kv_head);
    const auto* keys = reinterpret_cast<const Code*>(head.layer + run * head.head_bytes);
    const Code* values = keys + page_tokens * head_dim;
    const auto* scales = reinterpret_cast<const float*>(values + page_tokens * head_dim);
    const int end = std::min({page_tokens, offset + kBlockKeys - key, offset + last - position});
    for (int token = offset; token < end; ++token, ++key) {
      rows.keys[key] = keys + token * head_dim;
      rows.values[key] = values + token * head_dim;
      if constexpr (kHasScales<Code>) {
        key_scales[key] = scales[token];
        value_scales[key] = scales[page_tokens + token];
      }
    }
  }
  for (; key < kBlockKeys; ++key) {
    rows.keys[key] = rows.values[key] = zeros;
    key_scales[key] = value_scales[key] = 0;
  }
}

// The first `num_vectors` * kLanes keys of a block, turned so that a row of words has one of every key.
template <class Math, class Code>
void load_keys(const BlockRows<Code>& rows, int num_vectors, int head_dim, float* words) {
  using namespace simd;
  const int steps = head_dim / Math::kPerWord;
  for (int v = 0; v < num_vectors; ++v) {
    for (int step = 0; step < steps; step += kLanes) {
      const int count = std::min(kLanes, steps - step);
      F32 square[kLanes];
#pragma GCC unroll 16
      for (int key = 0; key < kLanes; ++key) {
        square[key] = load_words<Math::kPerWord>(rows.keys[v * kLanes + key] + step * Math::kPerWord, count);
      }
      transpose(square);
      float* to = words + step * kBlockKeys + v * kLanes;
      if (count == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(to + i * kBlockKeys, square[i]);
      } else {
        for (int i = 0; i < count; ++i) store(to + i * kBlockKeys, square[i]);
      }
    }
  }
}

// The values of the first `num_vectors` * kLanes keys. `width` is head_dim, rounded up to full vectors with zeros.
template <class Math, class Code>
void load_values(const BlockRows<Code>& rows, int num_vectors, int head_dim, int width, float* words) {
  using namespace simd;
  for (int key = 0; key < num_vectors * kLanes; key += Math::kPerWord, words += width) {
    if constexpr (Math::kPerWord == 1) {
      for (int i = 0; i < head_dim; i += kLanes) {
        store(words + i, load_words<1>(rows.values[key] + i, std::min(head_dim - i, kLanes)));
      }
    } else {
      interleave(rows.values[key], rows.values[key + 1], head_dim, words);
    }
  }
}

}  // namespace slipstream
