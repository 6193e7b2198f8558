// Causal attention over paged keys and values, for steps that mix prefill chunks with decode tokens.
//
// A step's plan is built once for all layers of one window and cuts the work into tiles: some queries of one sequence
// with the heads of one KV head. Rows of a tile are (query, head), all of them attend to the same keys. Long contexts
// of few queries are cut once more, at fixed positions; the tile that ends last puts the parts together, so that there
// is no second phase:
//
//     for each layer: all tiles of the plan, in any order, by any number of threads; then a barrier.
//
// What a row gives depends on nothing but its query and the keys and values it sees: blocks of keys and the places
// where contexts are cut are counted from position 0, so neither the batch, the chunk it is in, nor the number of
// threads changes a bit. Keys and values that no query of a tile sees are not read, whatever they hold, even nan, and
// their entries of the page table are not read either.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "vector.hpp"

namespace slipstream::cpu {

// How pages hold keys and values: in the model's dtype, or as codes with one float32 scale a token and head.
enum class KvFormat : std::int32_t { MODEL = 0, INT8 = 1, FP8 = 2 };

// One layer's pages are [pages, kv_heads, head run]; a head run is
//     MODEL        K [page_tokens, head_dim] | V [page_tokens, head_dim]
//     INT8, FP8    K codes | V codes | K scales float32 [page_tokens] | V scales float32 [page_tokens]
struct KvShape {
    int num_kv_heads;
    int head_dim;  // a multiple of 8, 8 to 256
    int page_tokens;
    KvFormat format;

    // Bytes of one head's run in one page; `element_bytes` are those of the model's dtype.
    std::size_t head_bytes(std::size_t element_bytes) const {
        const auto numbers = static_cast<std::size_t>(page_tokens) * static_cast<std::size_t>(head_dim);
        if (format == KvFormat::MODEL) return 2 * numbers * element_bytes;
        return 2 * (numbers + sizeof(float) * static_cast<std::size_t>(page_tokens));
    }
};

struct AttentionShape {
    KvShape kv;
    int num_heads;  // a multiple of kv.num_kv_heads
    int window;     // a query sees its own key and the `window - 1` before it; 0: all keys before it
    float scale;
};

// The sequences of a step. Queries of a sequence are the last of its kv_lens positions.
struct AttentionBatch {
    int num_seqs;
    const std::int32_t* query_starts;  // [num_seqs + 1] rows of the step
    const std::int32_t* kv_lens;       // [num_seqs]
    const std::int32_t* page_table;    // [num_seqs, page_table_stride]
    std::int64_t page_table_stride;
};

// Queries first_query .. last_query (rows of the step) with the heads of one KV head, and keys from first_key.
struct AttentionTile {
    std::int32_t seq;
    std::int32_t kv_head;
    std::int32_t first_query;
    std::int32_t last_query;      // behind the last one
    std::int32_t first_position;  // of first_query
    std::int32_t first_segment;   // of the context
    std::int32_t last_segment;    // behind the last one
    std::int32_t split;           // number in `splits`, or NOT_SPLIT
    static constexpr std::int32_t NOT_SPLIT = -1;
};

// A tile whose segments are computed by several: where their results meet.
struct AttentionSplit {
    std::int32_t first_segment;
    std::int32_t num_segments;
    std::int64_t partials;  // offset into the plan's workspace, in floats
};

// Which tiles a step has. Reused from step to step: memory only grows, to that of the largest step seen.
class AttentionPlan {
public:
    explicit AttentionPlan(const AttentionShape& shape);

    // Longest tiles first. The batch's arrays must stay as they are while the plan is used. No thread may run tiles
    // of this plan meanwhile.
    void build(const AttentionBatch& batch);

    int num_tiles() const { return static_cast<int>(tiles_.size()); }
    const AttentionShape& shape() const { return shape_; }
    const AttentionBatch& batch() const { return batch_; }
    const AttentionTile& tile(int index) const { return tiles_[static_cast<std::size_t>(index)]; }
    const AttentionSplit& split(int index) const { return splits_[static_cast<std::size_t>(index)]; }
    float* partials(const AttentionSplit& split) const { return workspace_.get() + split.partials; }

    // True for the last of a split's tiles; also makes the split ready for the next layer.
    bool ends_split(int index) const;

private:
    void add_tiles(int seq);
    void add_split_tiles(AttentionTile tile);

    AttentionShape shape_;
    AttentionBatch batch_{};
    std::vector<AttentionTile> tiles_;
    std::vector<std::int64_t> costs_;
    std::vector<std::uint64_t> order_;
    std::vector<AttentionTile> unordered_;
    std::vector<AttentionSplit> splits_;
    std::unique_ptr<std::atomic<std::int32_t>[]> pending_;  // [splits] tiles that have not ended yet
    std::size_t num_pending_ = 0;
    struct Free {
        void operator()(float* memory) const;
    };
    std::unique_ptr<float[], Free> workspace_;
    std::size_t workspace_floats_ = 0;
};

// Bytes that a thread needs to run tiles of plans of this shape; 64-byte aligned.
std::size_t attention_scratch_bytes(const AttentionShape& shape);

// Runs one tile of one layer. T is float or Bf16.
//     q        rows of the step, query heads first in each: [tokens, q_stride], head h at h * head_dim
//     kv_layer the layer's pages; the step's own keys and values are in them
//     out      [tokens, out_stride], head h at h * head_dim
template <typename T>
void attend(const AttentionPlan& plan, const T* q, std::int64_t q_stride, const void* kv_layer, T* out,
            std::int64_t out_stride, int tile, void* scratch);

}  // namespace slipstream::cpu
