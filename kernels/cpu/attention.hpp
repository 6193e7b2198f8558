// Causal attention over paged keys and values, for steps that mix prefill chunks with decode tokens.
//
// A step's plan is built once for all layers of one window and cuts the work into tiles: some queries of one sequence
// with the heads of some KV heads. Long contexts of few queries are cut once more, at fixed positions, into segments;
// the tile that ends last puts their results together, so that there is no second phase:
//
//     for each layer: all tiles of the plan, in any order, by any number of threads; then a barrier.
//
// What a row (a query of one head) gives depends on nothing but its query and the keys and values it sees: blocks of
// keys and segments are counted from position 0, so neither the batch, the chunk it is in nor the number of threads
// changes a bit. Behind the last query of a tile and before the window of its first, neither keys and values nor the
// page table are read: whatever is there, even nan, has no influence.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "vector.hpp"

namespace slipstream {

constexpr int kMaxHeadDim = 512;

// How pages hold keys and values: in the model's dtype, or as codes with one float32 scale a token and head.
enum class KvFormat : int32_t { model = 0, int8 = 1, fp8 = 2 };

// One layer's pages are [pages, units, heads of the unit, head run]; a head run is
//     model        K [page_tokens, key_dim] | V [page_tokens, value_dim]
//     int8, fp8    K codes | V codes | K scales float32 [page_tokens] | V scales float32 [page_tokens]
// A unit may be followed by a gap, where other layers store more than this one. Part of the C interface.
struct KvShape {
  int32_t num_kv_heads;
  int32_t key_dim;  // this and value_dim: a multiple of 8, up to kMaxHeadDim
  int32_t value_dim;
  int32_t page_tokens;
  KvFormat format;
  int32_t unit_heads;   // divides num_kv_heads
  int64_t unit_stride;  // bytes from one unit to the next
  int64_t page_stride;  // bytes from one page to the next

  // Bytes of one head's run in one page; `element_bytes` are those of the model's dtype.
  int64_t head_bytes(size_t element_bytes) const {
    const int64_t tokens = page_tokens, numbers = tokens * (key_dim + value_dim);
    if (format == KvFormat::model) return numbers * static_cast<int64_t>(element_bytes);
    return numbers + 2 * static_cast<int64_t>(sizeof(float)) * tokens;
  }

  // Where a head's run begins in a page.
  int64_t head_offset(int head, size_t element_bytes) const {
    return head / unit_heads * unit_stride + head % unit_heads * head_bytes(element_bytes);
  }
};

// Pages without gaps, whose keys are as wide as their values.
inline KvShape dense_pages(int num_kv_heads, int head_dim, int page_tokens, KvFormat format, size_t element_bytes) {
  KvShape shape{num_kv_heads, head_dim, head_dim, page_tokens, format, 1, 0, 0};
  shape.unit_stride = shape.head_bytes(element_bytes);
  shape.page_stride = num_kv_heads * shape.unit_stride;
  return shape;
}

struct AttentionShape {
  KvShape kv;
  int num_heads;  // a multiple of kv.num_kv_heads
  int window;     // a query sees its own key and the `window - 1` before it; 0: all keys before it
  int chunk;      // and only keys of its own run of `chunk` positions, as in Llama 4; 0: of all
  float scale;
  float softcap;  // scores are softcap * tanh(scale * q k^T / softcap); 0: scale * q k^T
};

// The sequences of a step. Queries of a sequence are the last of its kv_lens positions.
struct AttentionBatch {
  int num_seqs;
  const int32_t* query_starts;  // [num_seqs + 1] rows of the step
  const int32_t* kv_lens;       // [num_seqs]
  const int32_t* page_table;    // [num_seqs, page_table_stride]
  int64_t page_table_stride;
};

// Whether each of these rows of the step is the last of another sequence, in order of the sequences.
bool are_last_rows(const int32_t* rows, int num_rows, const int32_t* query_starts, int num_seqs);

// Queries of one sequence with the heads of some KV heads, and the segments of the context that they see.
struct AttentionTile {
  int32_t seq;
  int32_t first_kv_head;
  int32_t num_kv_heads;
  int32_t first_query;  // row of the step
  int32_t num_queries;
  int32_t first_position;  // of first_query
  int32_t first_segment;
  int32_t num_segments;
  int32_t split;  // whose part this tile is, or kNotSplit
  static constexpr int32_t kNotSplit = -1;
};

// Segments that are a tile each: where their results meet.
struct AttentionSplit {
  int32_t first_segment;
  int32_t num_segments;
  size_t first_partial;  // offset of the first segment's results in those of the plan
  size_t partial_size;   // floats of a segment
};

// Which tiles a step has. Reused from step to step: its memory only grows, to that of the largest step so far.
class AttentionPlan {
 public:
  explicit AttentionPlan(const AttentionShape& shape);

  // The longest tiles come first in each half. The batch's arrays must stay as they are while the plan is used, and no
  // thread may run tiles of this plan meanwhile. `rows`: only these rows of the step, for which `are_last_rows` holds;
  // none: all of them.
  void build(const AttentionBatch& batch, const int32_t* rows = nullptr, int num_rows = 0);

  int num_tiles() const { return static_cast<int>(order_.size()); }
  const AttentionTile& tile(int index) const { return tiles_[order_[static_cast<size_t>(index)]]; }
  const AttentionShape& shape() const { return shape_; }
  const AttentionBatch& batch() const { return batch_; }
  const AttentionSplit& split(const AttentionTile& tile) const { return splits_[static_cast<size_t>(tile.split)]; }

  // The unfinished results of a segment of a split.
  float* partial(const AttentionSplit& split, int segment) const;

  // To be called once by each tile of a split; true for the last one, which then sees the results of all.
  bool ends_split(const AttentionTile& tile) const;

 private:
  void add_queries(int seq, int first_row);
  void add_split(const AttentionTile& tile);
  size_t end_of_partials() const;
  int64_t cost(const AttentionTile& tile) const;

  AttentionShape shape_;
  AttentionBatch batch_{};
  int kv_heads_a_tile_ = 1;
  std::vector<AttentionTile> tiles_;
  std::vector<uint32_t> by_cost_, order_;
  std::vector<int64_t> costs_;
  std::vector<AttentionSplit> splits_;
  mutable std::vector<float> partials_;
  mutable std::vector<std::atomic<int32_t>> pending_;  // [splits] tiles that have not ended yet
};

// Bytes that a thread needs to run tiles of plans of this shape; to be aligned to 64 bytes.
size_t attention_scratch_bytes(const AttentionShape& shape);

// One layer of a step. T is float or Bf16; strides count elements.
template <typename T>
struct AttentionLayer {
  const T* q;  // [tokens, heads, key_dim]
  int64_t q_stride;
  int64_t q_head_stride;
  const void* pages;   // the step's own keys and values are in them
  const float* sinks;  // [heads] score of one more key of each head, whose value is zero; or none
  T* out;              // [tokens, heads, value_dim], heads without a gap
  int64_t out_stride;
};

// Runs one tile of one layer.
template <typename T>
void attend(const AttentionPlan& plan, const AttentionLayer<T>& layer, int tile, void* scratch);

}  // namespace slipstream
