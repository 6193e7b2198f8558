// Attention on its own behind the C interface, as the tests and benchmarks of the kernel call it.
#include <memory>
#include <vector>

#include "attention.hpp"
#include "export.hpp"
#include "linear.hpp"
#include "team.hpp"

namespace slipstream {
namespace {

// Layers with the same queries, one after the other.
struct AttentionCall {
  AttentionShape shape;
  AttentionBatch batch;
  Scalar type;  // of queries, results and unquantised pages: f32 or bf16
  int32_t num_layers;
  const void* q;  // [tokens, q_stride]
  int64_t q_stride;
  const std::byte* kv;  // [layers, layer_bytes]
  int64_t layer_bytes;
  const float* sinks;  // [heads] or none
  std::byte* out;      // [layers, tokens, heads * value_dim]
};

class AttentionWork final : public Work {
 public:
  explicit AttentionWork(const AttentionCall& call) : call_(call), plan_(call.shape) {
    plan_.build(call.batch);
    scratch_bytes_ = (attention_scratch_bytes(call.shape) + 63) / 64 * 64;
    scratch_.resize(scratch_bytes_ * static_cast<size_t>(num_threads()) + 64);
    const auto start = reinterpret_cast<uintptr_t>(scratch_.data());
    aligned_ = scratch_.data() + (64 - start % 64);
  }

  int begin_phase(int phase, int) override { return phase < call_.num_layers ? plan_.num_tiles() : kWorkEnds; }

  void run_tile(int phase, int tile, int thread) override {
    if (call_.type == Scalar::f32) {
      attend<float>(phase, tile, thread);
    } else {
      attend<Bf16>(phase, tile, thread);
    }
  }

 private:
  template <class T>
  void attend(int layer, int tile, int thread) {
    const int64_t stride = static_cast<int64_t>(call_.shape.num_heads) * call_.shape.kv.value_dim;
    const int64_t tokens = call_.batch.query_starts[call_.batch.num_seqs];
    T* out = reinterpret_cast<T*>(call_.out) + layer * tokens * stride;
    const AttentionLayer<T> rows{static_cast<const T*>(call_.q),
                                 call_.q_stride,
                                 call_.shape.kv.key_dim,
                                 call_.kv + layer * call_.layer_bytes,
                                 call_.sinks,
                                 out,
                                 stride};
    slipstream::attend(plan_, rows, tile, aligned_ + static_cast<size_t>(thread) * scratch_bytes_);
  }

  const AttentionCall& call_;
  AttentionPlan plan_;
  size_t scratch_bytes_;
  std::vector<std::byte> scratch_;
  std::byte* aligned_;
};

}  // namespace
}  // namespace slipstream

SLIPSTREAM_API void slipstream_attend(const slipstream::AttentionCall* call) {
  slipstream::AttentionWork work(*call);
  slipstream::run_together(work);
}
