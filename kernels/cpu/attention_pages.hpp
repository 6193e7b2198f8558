// Reading a block of keys and values out of the pages into the form that products need:
//
//     keys    [steps, kBlockKeys] words        a word holds one number, or two neighbouring ones of the same key
//     values  [keys / kPerWord, width] words   a word holds one number, or those of two neighbouring keys
//
// Codes of quantised pages become numbers of the model's dtype, exactly; their scales are kept apart, a key's for its
// scores, a value's for its weights.
#pragma once

#include <algorithm>
#include <cstring>

#include "attention.hpp"
#include "attention_block.hpp"
#include "vector_codes.hpp"

namespace slipstream {

struct KeyValueBlock {
  float* keys;          // [key_dim * kBlockKeys]
  float* values;        // [width * kBlockKeys]
  float* key_scales;    // [kBlockKeys]
  float* value_scales;  // [kBlockKeys]
};

// Keys first .. last (counted from position 0) of one sequence, for some KV heads, in a layer's pages.
struct PagedKeys {
  const std::byte* layer;
  const int32_t* pages;  // the sequence's row of the page table
  KvShape shape;
  size_t element_bytes;  // of the model's dtype
  int first;
  int last;
};

// Where the keys and values of a block lie. Those outside first .. last are zeros from elsewhere.
template <class Code>
struct BlockRows {
  const void* rows[2 * kBlockKeys];  // keys, then values
  alignas(64) float key_scales[kBlockKeys];
  alignas(64) float value_scales[kBlockKeys];

  void find(const PagedKeys& paged, int kv_head, int block);
  void set_zero(int key);
  const Code* key(int i) const { return static_cast<const Code*>(rows[i]); }
  const Code* value(int i) const { return static_cast<const Code*>(rows[kBlockKeys + i]); }
};

alignas(64) inline constexpr float kZeroRow[kMaxHeadDim] = {};

template <class Code>
void BlockRows<Code>::set_zero(int key) {
  rows[key] = rows[kBlockKeys + key] = kZeroRow;
  key_scales[key] = value_scales[key] = 0;
}

template <class Code>
void BlockRows<Code>::find(const PagedKeys& paged, int kv_head, int block) {
  const int page_tokens = paged.shape.page_tokens;
  const int key_dim = paged.shape.key_dim, value_dim = paged.shape.value_dim;
  const std::byte* head = paged.layer + paged.shape.head_offset(kv_head, paged.element_bytes);
  int key = 0;
  for (; block + key < paged.first; ++key) set_zero(key);
  while (key < kBlockKeys && block + key < paged.last) {
    const int position = block + key;
    const int page = position / page_tokens;
    const int offset = position - page * page_tokens;
    const auto* page_keys = reinterpret_cast<const Code*>(head + paged.pages[page] * paged.shape.page_stride);
    const Code* page_values = page_keys + page_tokens * key_dim;
    const auto* scales = reinterpret_cast<const float*>(page_values + page_tokens * value_dim);
    const int end = std::min({page_tokens, offset + kBlockKeys - key, offset + paged.last - position});
    for (int token = offset; token < end; ++token, ++key) {
      rows[key] = page_keys + token * key_dim;
      rows[kBlockKeys + key] = page_values + token * value_dim;
      if constexpr (kHasScales<Code>) {
        key_scales[key] = scales[token];
        value_scales[key] = scales[page_tokens + token];
      }
    }
  }
  for (; key < kBlockKeys; ++key) set_zero(key);
}

// The first `num_vectors` * kLanes keys of a block, turned so that a row of words has one of every key.
template <class Math, class Code>
void load_keys(const BlockRows<Code>& rows, Ahead& ahead, int num_vectors, int key_dim, float* words) {
  using namespace simd;
  const int steps = key_dim / Math::kPerWord;
  for (int v = 0; v < num_vectors; ++v) {
    for (int step = 0; step < steps; step += kLanes) {
      const int count = std::min(kLanes, steps - step);
      ahead.fetch<kAheadOfSquare>();
      F32 square[kLanes];
#pragma GCC unroll 16
      for (int key = 0; key < kLanes; ++key) {
        square[key] = load_words<Math::kPerWord>(rows.key(v * kLanes + key) + step * Math::kPerWord, count);
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

// The values of the first `num_vectors` * kLanes keys. `width` is value_dim, rounded up to full vectors with zeros.
template <class Math, class Code>
void load_values(const BlockRows<Code>& rows, Ahead& ahead, int num_vectors, int value_dim, int width, float* words) {
  using namespace simd;
  for (int key = 0; key < num_vectors * kLanes; key += Math::kPerWord, words += width) {
    ahead.fetch<kAheadOfValue>();
    if constexpr (Math::kPerWord == 1) {
      for (int i = 0; i < value_dim; i += kLanes) {
        store(words + i, load_words<1>(rows.value(key) + i, std::min(value_dim - i, kLanes)));
      }
    } else {
      interleave(rows.value(key), rows.value(key + 1), value_dim, words);
    }
  }
}

// Reads block after block: those with keys first .. last, for one KV head after the other. While a block is loaded, the
// next is on its way from memory.
template <class Math, class Code>
class BlockReader {
 public:
  BlockReader(const PagedKeys& paged, int first_kv_head, int num_kv_heads)
      : paged_(paged), kv_head_(first_kv_head), last_kv_head_(first_kv_head + num_kv_heads), block_(first_block()) {
    rows_[0].find(paged_, kv_head_, block_);
  }

  int first_block() const { return paged_.first / kBlockKeys * kBlockKeys; }

  void next(KeyValueBlock& words, int width, Ahead& ahead) {
    using namespace simd;
    const int num_vectors = std::min(paged_.last - block_ + kLanes - 1, kBlockKeys) / kLanes;
    const KvShape& shape = paged_.shape;
    const BlockRows<Code>& rows = rows_[current_];
    if (advance()) {
      BlockRows<Code>& coming = rows_[1 - current_];
      coming.find(paged_, kv_head_, block_);
      ahead.begin(coming.rows, kBlockKeys, shape.key_dim * sizeof(Code), shape.value_dim * sizeof(Code));
    }
    load_keys<Math>(rows, ahead, num_vectors, shape.key_dim, words.keys);
    load_values<Math>(rows, ahead, num_vectors, shape.value_dim, width, words.values);
    if constexpr (kHasScales<Code>) {
      std::memcpy(words.key_scales, rows.key_scales, sizeof rows.key_scales);
      std::memcpy(words.value_scales, rows.value_scales, sizeof rows.value_scales);
    }
    current_ = 1 - current_;
  }

 private:
  bool advance() {
    block_ += kBlockKeys;
    if (block_ < paged_.last) return true;
    block_ = first_block();
    return ++kv_head_ < last_kv_head_;
  }

  PagedKeys paged_;
  int kv_head_;  // this and block_: what the next call reads
  int last_kv_head_;
  int block_;
  int current_ = 0;
  BlockRows<Code> rows_[2];
};

}  // namespace slipstream
