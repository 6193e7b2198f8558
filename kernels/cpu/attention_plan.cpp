// Cutting a step's attention into tiles.

#include <algorithm>
#include <numeric>

#include "attention.hpp"
#include "attention_tile.hpp"

namespace slipstream {
namespace {

constexpr int64_t kRowsOfReading = 16;  // reading a key and its value costs as much as this many rows' arithmetic
constexpr int64_t kSmallTile = 256 * kRowsOfReading;  // tiles are not made smaller for the sake of more of them
constexpr int kManyTiles = 16;                        // enough for all threads, however they share the machine

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

bool are_last_rows(const int32_t* rows, int num_rows, const int32_t* query_starts, int num_seqs) {
  int num_found = 0;
  for (int seq = 0; seq < num_seqs && num_found < num_rows; ++seq) {
    num_found += rows[num_found] == query_starts[seq + 1] - 1;
  }
  return num_found == num_rows;
}

AttentionPlan::AttentionPlan(const AttentionShape& shape) : shape_(shape) {}

void AttentionPlan::build(const AttentionBatch& batch, const int32_t* rows, int num_rows) {
  batch_ = batch;
  tiles_.clear();
  splits_.clear();
  costs_.clear();
  const int kv_heads = shape_.kv.num_kv_heads;
  const int num_seqs = rows == nullptr ? batch.num_seqs : num_rows;
  kv_heads_a_tile_ = std::clamp(num_seqs * kv_heads / kManyTiles, 1, kv_heads);
  for (int seq = 0, next = 0; seq < batch.num_seqs; ++seq) {
    if (rows == nullptr) {
      add_queries(seq, batch.query_starts[seq]);
    } else if (next < num_rows && rows[next] == batch.query_starts[seq + 1] - 1) {
      add_queries(seq, rows[next++]);
    }
  }

  for (const AttentionTile& tile : tiles_) costs_.push_back(cost(tile));
  by_cost_.resize(tiles_.size());
  std::iota(by_cost_.begin(), by_cost_.end(), 0u);
  std::sort(by_cost_.begin(), by_cost_.end(),
            [this](uint32_t a, uint32_t b) { return costs_[a] != costs_[b] ? costs_[a] > costs_[b] : a < b; });
  // Threads begin at both halves (see team.cpp), so each of these begins with costly ones and ends with cheap ones.
  order_.clear();
  for (const size_t first : {size_t{0}, size_t{1}}) {
    for (size_t i = first; i < by_cost_.size(); i += 2) order_.push_back(by_cost_[i]);
  }

  if (pending_.size() < splits_.size()) pending_ = std::vector<std::atomic<int32_t>>(splits_.size() * 2);
  for (size_t i = 0; i < splits_.size(); ++i) {
    pending_[i].store(splits_[i].num_segments, std::memory_order_relaxed);
  }
  const size_t partials = end_of_partials();
  if (partials_.size() < partials) partials_ = std::vector<float>(partials);
}

float* AttentionPlan::partial(const AttentionSplit& split, int segment) const {
  const auto number = static_cast<size_t>(segment - split.first_segment);
  return partials_.data() + split.first_partial + number * split.partial_size;
}

bool AttentionPlan::ends_split(const AttentionTile& tile) const {
  std::atomic<int32_t>& pending = pending_[static_cast<size_t>(tile.split)];
  if (pending.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  pending.store(split(tile).num_segments, std::memory_order_relaxed);  // for the next layer
  return true;
}

// Those of the sequence from a row of the step on.
void AttentionPlan::add_queries(int seq, int first_row) {
  const int queries = batch_.query_starts[seq + 1] - first_row;
  const int start = batch_.kv_lens[seq] - queries;
  const int num_blocks = ceil_div(queries, queries_a_tile(shape_));
  for (int block = 0, query = 0; block < num_blocks; ++block) {
    const int count = (queries - query) / (num_blocks - block);
    AttentionTile tile{};
    tile.seq = seq;
    tile.num_kv_heads = 1;
    tile.first_query = first_row + query;
    tile.num_queries = count;
    tile.first_position = start + query;
    tile.split = AttentionTile::kNotSplit;
    tile.first_segment = first_key(tile, shape_) / kSegmentKeys;
    tile.num_segments = ceil_div(tile.first_position + count, kSegmentKeys) - tile.first_segment;
    const bool is_split = tile.num_segments > 1 && count * group_size(shape_) <= max_split_rows(shape_);
    // Tiles of few keys come together, as long as there are tiles enough.
    const int heads = is_split || cost(tile) > kSmallTile ? 1 : kv_heads_a_tile_;
    for (int head = 0; head < shape_.kv.num_kv_heads; head += heads) {
      tile.first_kv_head = head;
      tile.num_kv_heads = std::min(heads, shape_.kv.num_kv_heads - head);
      if (is_split) {
        add_split(tile);
      } else {
        tiles_.push_back(tile);
      }
    }
    query += count;
  }
}

void AttentionPlan::add_split(const AttentionTile& tile) {
  AttentionTile part = tile;
  part.split = static_cast<int32_t>(splits_.size());
  part.num_segments = 1;
  splits_.push_back({tile.first_segment, tile.num_segments, end_of_partials(),
                     gathered_floats(shape_, tile.num_queries * group_size(shape_))});
  for (int i = 0; i < tile.num_segments; ++i) {
    part.first_segment = tile.first_segment + i;
    tiles_.push_back(part);
  }
}

size_t AttentionPlan::end_of_partials() const {
  if (splits_.empty()) return 0;
  const AttentionSplit& last = splits_.back();
  return last.first_partial + static_cast<size_t>(last.num_segments) * last.partial_size;
}

int64_t AttentionPlan::cost(const AttentionTile& tile) const {
  const int64_t rows = tile.num_queries * group_size(shape_);
  const int first = std::max(first_key(tile, shape_), tile.first_segment * kSegmentKeys);
  const int last =
      std::min(tile.first_position + tile.num_queries, (tile.first_segment + tile.num_segments) * kSegmentKeys);
  return (rows + kRowsOfReading) * std::max(last - first, 0) * tile.num_kv_heads;
}

}  // namespace slipstream
