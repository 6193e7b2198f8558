// Plain C functions over packed weights and linear products, for tests and benchmarks.

#include <cstdint>

#include "export.hpp"
#include "linear.hpp"
#include "team.hpp"

using namespace slipstream;

namespace {

WeightShape shape_of(const int32_t* numbers) {
  return {static_cast<WeightKind>(numbers[0]), numbers[1] != 0, numbers[2], numbers[3], numbers[4]};
}

// Products with weights of one shape that lie one behind the other, as the layers of a model do.
class Products final : public Work {
 public:
  Products(const WeightShape& shape, const std::byte* packed, int copies, const LinearCall& call, int repeats,
           std::byte* scratch)
      : weight_{shape, packed}, first_(packed), copies_(copies), call_(call), repeats_(repeats), scratch_(scratch) {
    call_.weight = &weight_;
  }

  int begin_phase(int phase, int) override {
    weight_.data = first_ + phase % copies_ * packed_bytes(weight_.shape);
    return phase < repeats_ ? num_tiles(call_) : kWorkEnds;
  }

  void run_tile(int, int tile, int thread) override {
    slipstream::run_tile(call_, tile, scratch_ + thread * kLinearScratchBytes);
  }

 private:
  PackedWeight weight_;
  const std::byte* first_;
  int copies_;
  LinearCall call_;
  int repeats_;
  std::byte* scratch_;
};

}  // namespace

// `shape`: kind, paired, outputs, inputs, group.
SLIPSTREAM_API int64_t slipstream_linear_packed_bytes(const int32_t* shape) { return packed_bytes(shape_of(shape)); }

SLIPSTREAM_API void slipstream_linear_pack(const int32_t* shape, const SourceRows* sources, int32_t num_sources,
                                           std::byte* packed) {
  const WeightShape weight = shape_of(shape);
  for (int panel = 0; panel < num_panels(weight); ++panel) pack_panel(weight, sources, num_sources, panel, packed);
}

SLIPSTREAM_API int64_t slipstream_linear_scratch_bytes() { return kLinearScratchBytes; }

// Product i of `repeats` is with copy i % `copies` of the weight. `scratch`: slipstream_linear_scratch_bytes() for each
// thread. `call->weight` is not looked at.
SLIPSTREAM_API void slipstream_linear(const int32_t* shape, const std::byte* packed, int32_t copies,
                                      const LinearCall* call, int32_t repeats, std::byte* scratch) {
  Products products(shape_of(shape), packed, copies, *call, repeats, scratch);
  run_together(products);
}
