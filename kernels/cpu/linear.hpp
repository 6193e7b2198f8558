// y = epilogue(x W^T + bias): products with weights that never change, stored the way the kernels read them.
//
// A packed weight is a row of panels of kPanelOutputs outputs, each one run of bytes:
//
//     panel 0: outputs 0 .. 63 | panel 1: outputs 64 .. 127 | ...        (zeros past the last output)
//
//     f32    [inputs, 64]                   bf16   [inputs / 2, 64, 2]
//     int8, fp8, int4: see linear_layout.hpp
//
// A *paired* weight holds gate and up projection: panel p has the gate outputs 32 p .. 32 p + 31 and then the up
// outputs of the same numbers, so that the epilogue finds both and computes silu(gate) * up, or with another function.
//
// Every output is a chain of fused multiply-adds over the inputs in order, in float32, cut at fixed inputs, whatever
// the number of rows and whichever tile it lies in: a row's result does not depend, not in one bit, on the rows beside
// it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

constexpr int kPanelOutputs = 64;
constexpr int kMostGroupInputs = 256;
constexpr int kPackFormat = 1;  // changes with every change of the packed form

enum class Scalar : int32_t { f32 = 0, bf16 = 1, f16 = 2 };

enum class WeightKind : int32_t {
  f32 = 0,   // for float32 activations
  bf16 = 1,  // for bfloat16 activations
  int8 = 2,  // code * scale, code -127 .. 127                  these three: for activations of either type
  fp8 = 3,   // code * scale, code float8_e4m3fn
  int4 = 4,  // (code - zero) * scale, code and zero 0 .. 15
};

struct WeightShape {
  WeightKind kind;
  bool paired;
  int32_t outputs;  // of a paired weight: gate and up together
  int32_t inputs;
  int32_t group;  // consecutive inputs that share a scale: even and at most kMostGroupInputs; 0: all of them. f32
                  // and bf16: 0
};

// `data` is aligned to 64 bytes; it may lie in a mapped file.
struct PackedWeight {
  WeightShape shape;
  const std::byte* data;
};

// Packing -------------------------------------------------------------------------------------------------------------

int num_panels(const WeightShape& shape);
int64_t panel_bytes(const WeightShape& shape);   // a multiple of 64
int64_t packed_bytes(const WeightShape& shape);  // num_panels * panel_bytes

// Consecutive outputs of a weight, as they lie in a checkpoint. A weight is made of one or several of them, in order
// (q, k and v; gate and up).
struct SourceRows {
  int32_t outputs;
  const void* values;  // f32, bf16: Scalar [outputs, inputs]; int8: int8; fp8: its bytes; int4: int32
                       // [outputs, inputs / 8], eight codes each, the first in the lowest four bits
  int64_t stride;      // elements of `values` from one output to the next
  Scalar values_type;  // f32 and bf16 only: converted on the way, to nearest even
  // The quantised kinds: [ceil(outputs / scale_outputs), groups], with one row of scales for `scale_outputs` outputs.
  const void* scales;
  Scalar scales_type;
  int64_t scales_stride;
  int32_t scale_outputs;
  int32_t scale_first;   // how far into its row of scales the first output is (a slice that begins within a block)
  const uint8_t* zeros;  // int4: [outputs, groups], none: 8
  int64_t zeros_stride;
};

// Writes panel `panel` of the packed weight at `packed`. Panels are independent of each other: pack them in parallel.
void pack_panel(const WeightShape& shape, const SourceRows* sources, int num_sources, int panel, std::byte* packed);

// Products ------------------------------------------------------------------------------------------------------------

enum class Epilogue : int32_t {
  store = 0,           // y is of the activations' type
  store_f32 = 1,       // y is float32
  add_residual = 2,    // y is float32 and added to
  silu_mul = 3,        // paired weights: y [rows, outputs / 2] of the activations' type
  gelu_mul = 4,        // the same with gelu in its form with tanh
  clamped_swiglu = 5,  // y = (up + 1) * gate * sigmoid(alpha * gate), the gate at most `limit` and up within
                       // -limit .. limit (gpt-oss)
  gelu_tanh = 6,       // like store, and a function of the sums, here gelu in its form with tanh
  gelu = 7,            // x times the normal distribution's share below x
  relu = 8,
  silu = 9,
};

inline bool is_wide(Epilogue epilogue) { return epilogue == Epilogue::store_f32 || epilogue == Epilogue::add_residual; }
inline bool is_gated(Epilogue epilogue) {
  return epilogue == Epilogue::silu_mul || epilogue == Epilogue::gelu_mul || epilogue == Epilogue::clamped_swiglu;
}

struct LinearCall {
  const PackedWeight* weight;
  const float* bias;  // [outputs], in the order of the sources; or none
  Scalar type;        // of the activations: f32 or bf16
  const void* x;      // [rows, inputs]
  int64_t x_stride;   // elements from one row to the next
  int32_t rows;
  Epilogue epilogue;
  void* y;  // [rows, outputs]
  int64_t y_stride;
  int32_t tiles_ahead = 1;           // how far from a tile its thread's next one is likely to be: `threads_of_queue`
  float alpha = 0, limit = 0;        // clamped_swiglu
  const std::byte* after = nullptr;  // the weight that is read after this one; none: what lies behind it in memory
};

// Of one thread, aligned to 64 bytes.
constexpr int64_t kLinearScratchBytes = 192 * 1024;

// Tiles write disjoint parts of y. With x and y given, any thread may run any of them, in any order. Rows may be 0.
int num_tiles(const LinearCall& call);
void run_tile(const LinearCall& call, int tile, std::byte* scratch);

}  // namespace slipstream
