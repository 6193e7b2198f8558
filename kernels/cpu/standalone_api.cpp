// Attention, the writing of keys and values, and products on plain tensors, one call each, for models that are computed
// op by op (see `native_attention.py`, `native_linear.py`). Behind the C interface.
#include <algorithm>

#include "attention.hpp"
#include "buffer.hpp"
#include "elementwise.hpp"
#include "export.hpp"
#include "linear.hpp"
#include "team.hpp"

namespace slipstream {
namespace {

constexpr int kTokensOfTile = 16;  // whose keys and values are written: a few microseconds of copying

// Works take turns (see team.hpp), so one scratch memory serves all that stand alone. It is never freed: helpers of a
// process that ends may still hold it.
std::byte* shared_scratch(int64_t bytes_of_thread) {
  static auto* scratch = new Buffer<std::byte>;
  scratch->reserve(static_cast<size_t>(num_threads() * bytes_of_thread));
  return scratch->data();
}

// The layers of a model that share heads, widths, window and scale.
class LayerKind {
 public:
  LayerKind(const AttentionShape& shape, Scalar type)
      : type(type), plan(shape), scratch_bytes((static_cast<int64_t>(attention_scratch_bytes(shape)) + 63) / 64 * 64) {}

  const Scalar type;  // of queries, results and unquantised pages: f32 or bf16
  AttentionPlan plan;
  const int64_t scratch_bytes;
};

template <typename T>
class AttentionWork final : public Work {
 public:
  AttentionWork(const LayerKind& kind, const AttentionLayer<T>& layer) : kind_(kind), layer_(layer) {}

  int begin_phase(int phase, int) override {
    if (phase > 0) return kWorkEnds;
    scratch_ = shared_scratch(kind_.scratch_bytes);
    return kind_.plan.num_tiles();
  }

  void run_tile(int, int tile, int thread) override {
    attend(kind_.plan, layer_, tile, scratch_ + thread * kind_.scratch_bytes);
  }

 private:
  const LayerKind& kind_;
  const AttentionLayer<T>& layer_;
  std::byte* scratch_ = nullptr;
};

template <typename T>
class StoreWork final : public Work {
 public:
  StoreWork(const KvRows<T>& rows, int num_tokens) : rows_(rows), num_tokens_(num_tokens) {}

  int begin_phase(int phase, int) override {
    return phase > 0 ? kWorkEnds : (num_tokens_ + kTokensOfTile - 1) / kTokensOfTile;
  }

  void run_tile(int, int tile, int) override {
    store_keys_values(rows_, tile * kTokensOfTile, std::min((tile + 1) * kTokensOfTile, num_tokens_));
  }

 private:
  const KvRows<T>& rows_;
  int num_tokens_;
};

class ProductWork final : public Work {
 public:
  explicit ProductWork(LinearCall& call) : call_(call) {}

  int begin_phase(int phase, int) override {
    if (phase > 0) return kWorkEnds;
    call_.tiles_ahead = threads_of_queue();
    scratch_ = shared_scratch(kLinearScratchBytes);
    return num_tiles(call_);
  }

  void run_tile(int, int tile, int thread) override {
    slipstream::run_tile(call_, tile, scratch_ + thread * kLinearScratchBytes);
  }

 private:
  LinearCall& call_;
  std::byte* scratch_ = nullptr;
};

template <typename T>
void attend_layer(const LayerKind& kind, const void* q, int64_t q_stride, int64_t q_head_stride, const void* pages,
                  const float* sinks, void* out, int64_t out_stride) {
  const AttentionLayer<T> layer{static_cast<const T*>(q), q_stride,  q_head_stride, pages, sinks,
                                static_cast<T*>(out),     out_stride};
  AttentionWork<T> work(kind, layer);
  run_together(work);
}

template <typename T>
void store_layer(const LayerKind& kind, const void* keys, int64_t key_stride, int64_t key_head_stride,
                 const void* values, int64_t value_stride, int64_t value_head_stride, const int32_t* slots,
                 int num_tokens, void* pages) {
  const KvRows<T> rows{kind.plan.shape().kv,
                       static_cast<const T*>(keys),
                       key_stride,
                       key_head_stride,
                       static_cast<const T*>(values),
                       value_stride,
                       value_head_stride,
                       slots,
                       pages};
  if (num_tokens <= kTokensOfTile) return store_keys_values(rows, 0, num_tokens);
  StoreWork<T> work(rows, num_tokens);
  run_together(work);
}

}  // namespace
}  // namespace slipstream

using slipstream::AttentionShape;
using slipstream::Bf16;
using slipstream::LayerKind;
using slipstream::Scalar;

SLIPSTREAM_API LayerKind* slipstream_attention_create(const AttentionShape* shape, int32_t type) {
  return new LayerKind(*shape, static_cast<Scalar>(type));
}

SLIPSTREAM_API void slipstream_attention_destroy(LayerKind* kind) { delete kind; }

// Plans a step. The arrays must stay as they are until its last slipstream_attention_run.
SLIPSTREAM_API void slipstream_attention_begin(LayerKind* kind, int32_t num_seqs, const int32_t* query_starts,
                                               const int32_t* kv_lens, const int32_t* page_table,
                                               int64_t page_table_stride) {
  kind->plan.build({num_seqs, query_starts, kv_lens, page_table, page_table_stride});
}

SLIPSTREAM_API void slipstream_attention_run(const LayerKind* kind, const void* q, int64_t q_stride,
                                             int64_t q_head_stride, const void* pages, const float* sinks, void* out,
                                             int64_t out_stride) {
  const auto attend = kind->type == Scalar::f32 ? slipstream::attend_layer<float> : slipstream::attend_layer<Bf16>;
  attend(*kind, q, q_stride, q_head_stride, pages, sinks, out, out_stride);
}

SLIPSTREAM_API void slipstream_store_kv(const LayerKind* kind, const void* keys, int64_t key_stride,
                                        int64_t key_head_stride, const void* values, int64_t value_stride,
                                        int64_t value_head_stride, const int32_t* slots, int32_t num_tokens,
                                        void* pages) {
  const auto store = kind->type == Scalar::f32 ? slipstream::store_layer<float> : slipstream::store_layer<Bf16>;
  store(*kind, keys, key_stride, key_head_stride, values, value_stride, value_head_stride, slots, num_tokens, pages);
}

SLIPSTREAM_API void slipstream_product(const slipstream::PackedWeight* weight, const float* bias, int32_t type,
                                       const void* x, int64_t x_stride, int32_t rows, int32_t epilogue, void* y,
                                       int64_t y_stride) {
  slipstream::LinearCall call{
      weight, bias,    static_cast<Scalar>(type), x, x_stride, rows, static_cast<slipstream::Epilogue>(epilogue),
      y,      y_stride};
  slipstream::ProductWork work(call);
  slipstream::run_together(work);
}
