// Running a tile: its rows against the blocks of keys that they see.
//
//     segment   | block  block  block .. |  for each block: read it, then for a few rows at a time
//               |  scores = q k^T -> weights = 2^(scores - most) -> values += weights v
//     at its end, what it gathered is added to what the segments before it have

#include "attention.hpp"

#include <cstring>
#include <type_traits>
#include <utility>

#include "attention_block.hpp"
#include "attention_pages.hpp"
#include "attention_tile.hpp"

namespace slipstream {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kLargestExponent = 127.0f;  // of a power of two in float32

int tile_rows(const AttentionShape& shape) { return queries_a_tile(shape) * group_size(shape); }

size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

// A thread's memory while it runs a tile.
struct TileMemory {
  KeyValueBlock block;
  float* queries;  // [rows, key_dim] words
  float* scores;   // [kMaxRows, kBlockKeys]
  float* weights;  // [kMaxRows, kBlockKeys] words
  RowState state;  // of a segment
  Gathered segment;
  Gathered sum;  // of the segments before

  // Lays it out from `memory`; returns its size.
  size_t lay_out(std::byte* memory, const AttentionShape& shape) {
    const auto rows = static_cast<size_t>(tile_rows(shape));
    size_t used = 0;
    const auto take = [&](size_t bytes) {
      std::byte* start = memory + used;
      used += round_up(bytes);
      return start;
    };
    const auto floats = [&](size_t count) { return reinterpret_cast<float*>(take(count * sizeof(float))); };
    const auto width = static_cast<size_t>(value_width(shape.kv.value_dim));
    block.keys = floats(static_cast<size_t>(shape.kv.key_dim) * kBlockKeys);
    block.values = floats(width * kBlockKeys);
    block.key_scales = floats(kBlockKeys);
    block.value_scales = floats(kBlockKeys);
    queries = floats(rows * static_cast<size_t>(shape.kv.key_dim));
    scores = floats(kMaxRows * kBlockKeys);
    weights = floats(kMaxRows * kBlockKeys);
    segment = gathered_at(floats(gathered_floats(shape, tile_rows(shape))), shape, tile_rows(shape));
    sum = gathered_at(floats(gathered_floats(shape, tile_rows(shape))), shape, tile_rows(shape));
    state = {segment.most, floats(rows * simd::kLanes), segment.values, static_cast<int>(width)};
    return used;
  }
};

// Adds what a segment gathered for a row to what the segments before it did.
void fold(const Gathered& sum, const Gathered& segment, int row, int width) {
  using namespace simd;
  const float most = std::max(sum.most[row], segment.most[row]);
  const F32 sum_factor = exp2(broadcast(sum.most[row] - most));
  const F32 segment_factor = exp2(broadcast(segment.most[row] - most));
  float* to = sum.values + row * width;
  const float* from = segment.values + row * width;
  for (int i = 0; i < width; i += kLanes) {
    store(to + i, fma(load(to + i), sum_factor, mul(load(from + i), segment_factor)));
  }
  const F32 total = fma(broadcast(sum.total[row]), sum_factor, mul(broadcast(segment.total[row]), segment_factor));
  sum.total[row] = first_lane(total);
  sum.most[row] = most;
}

template <class T, class Math, class Code>
class TileRun {
 public:
  TileRun(const AttentionPlan& plan, const AttentionLayer<T>& layer, int tile, void* scratch)
      : plan_(plan),
        shape_(plan.shape()),
        tile_(plan.tile(tile)),
        layer_(layer),
        group_(group_size(shape_)),
        num_rows_(tile_.num_queries * group_),
        width_(value_width(shape_.kv.value_dim)),
        steps_(shape_.kv.key_dim / Math::kPerWord) {
    memory_.lay_out(static_cast<std::byte*>(scratch), shape_);
  }

  void run() {
    const PagedKeys paged{
        static_cast<const std::byte*>(layer_.pages),
        plan_.batch().page_table + tile_.seq * plan_.batch().page_table_stride,
        shape_.kv,
        sizeof(T),
        std::max(first_key(tile_, shape_), tile_.first_segment * kSegmentKeys),
        std::min(tile_.first_position + tile_.num_queries, (tile_.first_segment + tile_.num_segments) * kSegmentKeys)};
    BlockReader<Math, Code> reader(paged, tile_.first_kv_head, tile_.num_kv_heads);
    for (int head = tile_.first_kv_head; head < tile_.first_kv_head + tile_.num_kv_heads; ++head) {
      copy_queries(head);
      begin_segment();
      for (int block = reader.first_block(); block < paged.last; block += kBlockKeys) {
        if (block % kSegmentKeys == 0 && block > paged.first) {
          end_segment(block / kSegmentKeys - 1);
          begin_segment();
        }
        reader.next(memory_.block, width_, ahead_);
        if constexpr (kHasScales<Code>) scale_keys();
        run_block(block);
      }
      end_segment(tile_.first_segment + tile_.num_segments - 1);
      if (tile_.split == AttentionTile::kNotSplit) {
        finish(head, tile_.num_segments > 1 ? memory_.sum : memory_.segment);
      } else {
        finish_split(head);
      }
    }
  }

 private:
  void begin_segment() {
    for (int row = 0; row < num_rows_; ++row) clear(memory_.state, row);
  }

  void end_segment(int segment) {
    for (int row = 0; row < num_rows_; ++row) {
      memory_.segment.total[row] = simd::reduce_add(simd::load(memory_.state.total + row * simd::kLanes));
    }
    if (segment > tile_.first_segment) {
      for (int row = 0; row < num_rows_; ++row) fold(memory_.sum, memory_.segment, row, width_);
    } else if (tile_.num_segments > 1) {
      std::swap(memory_.sum, memory_.segment);
      memory_.state.most = memory_.segment.most;
      memory_.state.values = memory_.segment.values;
    }
  }

  // The last one to bring its part puts all parts together, in order.
  void finish_split(int kv_head) {
    const AttentionSplit& split = plan_.split(tile_);
    const Gathered part = gathered_at(plan_.partial(split, tile_.first_segment), shape_, num_rows_);
    std::copy_n(memory_.segment.values, num_rows_ * width_, part.values);
    std::copy_n(memory_.segment.most, num_rows_, part.most);
    std::copy_n(memory_.segment.total, num_rows_, part.total);
    if (!plan_.ends_split(tile_)) return;
    const Gathered sum = gathered_at(plan_.partial(split, split.first_segment), shape_, num_rows_);
    for (int segment = split.first_segment + 1; segment < split.first_segment + split.num_segments; ++segment) {
      const Gathered next = gathered_at(plan_.partial(split, segment), shape_, num_rows_);
      for (int row = 0; row < num_rows_; ++row) fold(sum, next, row, width_);
    }
    finish(kv_head, sum);
  }

  void scale_keys() {
    using namespace simd;
    float* scales = memory_.block.key_scales;
    const F32 all = broadcast(shape_.scale * kLog2E);
    for (int i = 0; i < kBlockKeys; i += kLanes) store(scales + i, mul(load(scales + i), all));
  }

  void run_block(int block) {
    const int num_groups = (num_rows_ + kMaxRows - 1) / kMaxRows;
    for (int i = 0, row = 0; i < num_groups; ++i) {
      const int count = (num_rows_ - row) / (num_groups - i);
      if (num_rows_ <= kRowsOfDecoding) {
        run_rows(block, row, count, ahead_);
      } else {
        NothingAhead nothing;
        ahead_.fetch<kAheadOfGroup>();
        run_rows(block, row, count, nothing);
      }
      row += count;
    }
  }

  template <class StepsAhead>
  void run_rows(int block, int first_row, int count, StepsAhead& ahead) {
    using simd::kLanes;
    const int first_position = tile_.first_position + first_row / group_;
    const int last_position = tile_.first_position + (first_row + count - 1) / group_;
    const int num_keys = std::min(last_position + 1 - block, kBlockKeys);
    if (num_keys <= 0 || block + kBlockKeys <= first_seen(shape_, first_position)) return;
    const int num_vectors = (num_keys + kLanes - 1) / kLanes;
    const KeyValueBlock& words = memory_.block;
    multiply<Math>(count, memory_.queries + first_row * steps_, steps_, words.keys, kBlockKeys, steps_, memory_.scores,
                   kBlockKeys, num_vectors, false, ahead);
    const Scales scales{shape_.scale * kLog2E, shape_.softcap * kLog2E, kHasScales<Code> ? words.key_scales : nullptr,
                        kHasScales<Code> ? words.value_scales : nullptr};
    for (int i = 0; i < count; ++i) {
      const int position = tile_.first_position + (first_row + i) / group_;
      const int first = first_seen(shape_, position) - block;
      const RowScores row{first_row + i, memory_.scores + i * kBlockKeys, first, position + 1 - block};
      weigh(memory_.state, row, num_vectors, scales, weights(i));
    }
    multiply<Math>(count, memory_.weights, kBlockKeys / Math::kPerWord, words.values, width_,
                   num_vectors * kLanes / Math::kPerWord, memory_.state.values + first_row * width_, width_,
                   width_ / kLanes, true, ahead);
  }

  // Weights are rounded like values are where two make a word.
  auto* weights(int row) {
    using Weight = std::conditional_t<Math::kPerWord == 2, Bf16, float>;
    return reinterpret_cast<Weight*>(memory_.weights) + row * kBlockKeys;
  }

  void copy_queries(int kv_head) {
    using namespace simd;
    const int key_dim = shape_.kv.key_dim;
    // Heads that lie one behind the other are copied as one.
    const bool is_dense = layer_.q_head_stride == key_dim;
    const int runs = is_dense ? 1 : group_, count = is_dense ? group_ * key_dim : key_dim;
    for (int query = 0; query < tile_.num_queries; ++query) {
      const T* from =
          layer_.q + (tile_.first_query + query) * layer_.q_stride + kv_head * group_ * layer_.q_head_stride;
      float* to = memory_.queries + query * group_ * steps_;
      for (int run = 0; run < runs; ++run, from += layer_.q_head_stride, to += steps_) {
        if constexpr (Math::kPerWord == 2) {
          std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
        } else {
          for (int i = 0; i < count; i += kLanes) {
            const int left = std::min(kLanes, count - i);
            store_some(to + i, load_some(from + i, left), left);
          }
        }
      }
    }
  }

  // What weights are divided by. A sink adds its own, as a key with this score would.
  float divisor(const Gathered& result, int row, int head) const {
    if (layer_.sinks == nullptr) return result.total[row];
    const float above = std::min(layer_.sinks[head] * kLog2E - result.most[row], kLargestExponent);
    return result.total[row] + simd::first_lane(simd::exp2(simd::broadcast(above)));
  }

  void finish(int kv_head, const Gathered& result) {
    using namespace simd;
    const int value_dim = shape_.kv.value_dim;
    for (int row = 0; row < num_rows_; ++row) {
      const int head = kv_head * group_ + row % group_;
      T* to = layer_.out + (tile_.first_query + row / group_) * layer_.out_stride + head * value_dim;
      const F32 factor = broadcast(1.0f / divisor(result, row, head));
      for (int i = 0; i < value_dim; i += kLanes) {
        store_some(to + i, mul(load(result.values + row * width_ + i), factor), std::min(kLanes, value_dim - i));
      }
    }
  }

  const AttentionPlan& plan_;
  const AttentionShape& shape_;
  const AttentionTile& tile_;
  const AttentionLayer<T>& layer_;
  int group_;  // heads that share a KV head
  int num_rows_;
  int width_;
  int steps_;
  TileMemory memory_;
  Ahead ahead_;
};

#if defined(__AVX512BF16__)
template <class T>
using MathOf = std::conditional_t<std::is_same_v<T, Bf16>, PairMath, SingleMath>;
#else
template <class T>
using MathOf = SingleMath;
#endif

}  // namespace

size_t attention_scratch_bytes(const AttentionShape& shape) { return TileMemory().lay_out(nullptr, shape); }

template <typename T>
void attend(const AttentionPlan& plan, const AttentionLayer<T>& layer, int tile, void* scratch) {
  using Math = MathOf<T>;
  switch (plan.shape().kv.format) {
    case KvFormat::model: return TileRun<T, Math, T>(plan, layer, tile, scratch).run();
    case KvFormat::int8: return TileRun<T, Math, Int8>(plan, layer, tile, scratch).run();
    case KvFormat::fp8: return TileRun<T, Math, Fp8>(plan, layer, tile, scratch).run();
  }
}

template void attend<float>(const AttentionPlan&, const AttentionLayer<float>&, int, void*);
template void attend<Bf16>(const AttentionPlan&, const AttentionLayer<Bf16>&, int, void*);

}  // namespace slipstream
