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

// A product as a piece of work for the team, `repeats` times over.
class Product final : public Work {
 public:
  Product(const LinearCall& call, int repeats, std::byte* scratch) : call_(call), repeats_(repeats), scratch_(scratch) {}

  int begin_phase(int phase, int) override { return phase < repeats_ ? num_tiles(call_) : kWorkEnds; }
  void run_tile(int, int tile, int thread) override {
    slipstream::run_tile(call_, tile, scratch_ + thread * kLinearScratchBytes);
  }

 private:
  const LinearCall& call_;
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

// `scratch`: slipstream_linear_scratch_bytes() for each thread. `call->weight` is set here.
SLIPSTREAM_API void slipstream_linear(const int32_t* shape, const std::byte* packed, LinearCall* call, int32_t repeats,
                                      std::byte* scratch) {
  const PackedWeight weight{shape_of(shape), packed};
  call->weight = &weight;
  Product product(*call, repeats, scratch);
  run_together(product);
  call->weight = nullptr;
}
