// A layer of experts as one call on plain tensors, for models whose steps are not programs (see `grouped_experts.py`).
#include <cstdint>

#include "buffer.hpp"
#include "experts.hpp"
#include "export.hpp"
#include "team.hpp"
#include "vector.hpp"

using namespace slipstream;

namespace {

// Mirrored in `c_interface.py`. Choices and their weights come from the caller.
struct ExpertsCall {
  Scalar type;  // of x and y: f32 or bf16
  int32_t rows;
  int32_t top_k;
  int32_t num_experts;
  Epilogue gate;  // silu_mul, gelu_mul or clamped_swiglu
  float alpha, limit;
  const void* x;              // [rows, dim]
  int64_t x_stride;           // elements
  const int64_t* experts;     // [rows, top_k]; one that is not in 0 .. num_experts - 1 adds nothing
  const float* weights;       // [rows, top_k]
  PackedWeight gate_up;       // paired, of expert 0
  int64_t gate_up_bytes;      // from one expert to the next
  const float* gate_up_bias;  // [num_experts, outputs] or none
  PackedWeight down;
  int64_t down_bytes;
  const float* down_bias;
  void* y;  // [rows, dim]
};

// Memory of all calls, which take turns.
struct Workspace {
  ExpertPairs pairs;
  ExpertProducts products;
  Buffer<std::byte> gathered, inner, outputs, scratch;
};

Workspace& workspace() {
  static auto* const the_workspace = new Workspace();
  return *the_workspace;
}

template <typename T>
class ExpertsWork final : public Work {
 public:
  explicit ExpertsWork(const ExpertsCall& call) : call_(call), space_(workspace()) {}

  int begin_phase(int phase, int) override {
    switch (phase) {
      case 0: return gather();
      case 1: return multiply(call_.gate_up, call_.gate_up_bytes, call_.gate_up_bias, true);
      case 2: return multiply(call_.down, call_.down_bytes, call_.down_bias, false);
      case 3: return begin_rows();
      default: return kWorkEnds;
    }
  }

  void run_tile(int phase, int tile, int thread) override {
    const int first = tile * rows_of_tile_, end = first + rows_of_tile_, last = end < call_.rows ? end : call_.rows;
    switch (phase) {
      case 0: {
        const auto size = static_cast<int64_t>(sizeof(T));
        space_.pairs.gather(static_cast<const std::byte*>(call_.x), call_.x_stride * size, dim() * size,
                            space_.gathered.data(), first, last);
        return;
      }
      case 3:
        space_.pairs.combine(reinterpret_cast<const float*>(space_.outputs.data()), outputs(), static_cast<T*>(call_.y),
                             outputs(), false, first, last);
        return;
      default: space_.products.run_tile(tile, space_.scratch.data() + thread * kLinearScratchBytes);
    }
  }

 private:
  int dim() const { return call_.gate_up.shape.inputs; }
  int inner() const { return call_.down.shape.inputs; }
  int outputs() const { return call_.down.shape.outputs; }

  int gather() {
    space_.pairs.begin({call_.num_experts, 0, call_.num_experts, call_.top_k, 0}, call_.rows);
    space_.pairs.take(call_.experts, call_.weights);
    space_.pairs.sort(nullptr);
    const auto pairs = static_cast<size_t>(space_.pairs.num_pairs());
    space_.gathered.reserve(pairs * static_cast<size_t>(dim()) * sizeof(T));
    space_.inner.reserve(pairs * static_cast<size_t>(inner()) * sizeof(T));
    space_.outputs.reserve(pairs * static_cast<size_t>(outputs()) * sizeof(float));
    space_.scratch.reserve(static_cast<size_t>(num_threads() * kLinearScratchBytes));
    return begin_rows();
  }

  int begin_rows() {
    constexpr int kTileNumbers = 16384;
    const int numbers = dim() * call_.top_k;
    rows_of_tile_ = numbers > 0 && numbers < kTileNumbers ? kTileNumbers / numbers : 1;
    return (call_.rows + rows_of_tile_ - 1) / rows_of_tile_;
  }

  int multiply(const PackedWeight& weight, int64_t bytes, const float* bias, bool is_first) {
    LinearCall call = {};
    call.type = call_.type;
    call.x = is_first ? space_.gathered.data() : space_.inner.data();
    call.x_stride = weight.shape.inputs;
    call.epilogue = is_first ? call_.gate : Epilogue::store_f32;
    call.y = is_first ? space_.inner.data() : space_.outputs.data();
    call.y_stride = is_first ? inner() : outputs();
    call.tiles_ahead = threads_of_queue();
    call.alpha = call_.alpha;
    call.limit = call_.limit;
    const std::byte* then = nullptr;
    if (is_first && space_.pairs.num_hit() > 0) then = call_.down.data + space_.pairs.hit(0) * call_.down_bytes;
    return space_.products.begin(space_.pairs, {weight, bytes, bias}, call, then);
  }

  const ExpertsCall& call_;
  Workspace& space_;
  int rows_of_tile_ = 1;
};

}  // namespace

SLIPSTREAM_API void slipstream_experts(const ExpertsCall* call) {
  if (call->type == Scalar::f32) {
    ExpertsWork<float> work(*call);
    run_together(work);
  } else {
    ExpertsWork<Bf16> work(*call);
    run_together(work);
  }
}
