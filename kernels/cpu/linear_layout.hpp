// Where things lie in a panel of a packed weight.
//
//     f32, bf16     words [steps, 64]
//     int8, fp8     for each group: scales float32 [64] | codes [steps, 2 halves, 64]
//     int4          for each group: scales float32 [64] | zeros uint8 [64] | codes [steps, 64]
//
// A step is one input in f32 and two neighbouring ones otherwise; a word is what one output multiplies with in a step.
// The last step of an odd number of inputs is filled up with zeros.
#pragma once

#include "linear.hpp"

namespace slipstream::linear {

constexpr int kWordBytes = 4;
constexpr int kStepBytes = kPanelOutputs * kWordBytes;
constexpr int kScaleBytes = kPanelOutputs * static_cast<int>(sizeof(float));

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

inline bool has_codes(WeightKind kind) { return kind != WeightKind::f32 && kind != WeightKind::bf16; }

inline int num_groups(const WeightShape& shape) { return shape.group == 0 ? 1 : ceil_div(shape.inputs, shape.group); }

// Scales and zeros before the codes of a group.
inline int64_t group_header_bytes(WeightKind kind) {
  return kScaleBytes + (kind == WeightKind::int4 ? kPanelOutputs : 0);
}

// Of the codes of `inputs` inputs for all outputs of a panel.
inline int64_t code_bytes(WeightKind kind, int inputs) {
  return int64_t{ceil_div(inputs, 2)} * kPanelOutputs * (kind == WeightKind::int4 ? 1 : 2);
}

// A group of a panel and the next: all but the last are of this size.
inline int64_t group_bytes(const WeightShape& shape) {
  const int inputs = shape.group == 0 ? shape.inputs : shape.group;
  return group_header_bytes(shape.kind) + code_bytes(shape.kind, inputs);
}

// The bytes of a step's 128 codes of 8 bits lie so that interleaving two registers of tables' halves, 128 bits by 128
// bits, gives the outputs in order. For the code of output 16 v + 4 q + i (v, q, i in 0 .. 3) and input `odd`:
inline int code_position(int output, int odd) {
  const int vector = output / 16, quarter = output / 4 % 4, i = output % 4;
  return (vector / 2) * 64 + quarter * 16 + (vector % 2) * 8 + i * 2 + odd;
}

// The same for the 64 bytes of int4, which hold both inputs of an output: the even one in the lower half.
inline int nibble_position(int output) {
  const int vector = output / 16, quarter = output / 4 % 4, i = output % 4;
  return quarter * 16 + vector * 4 + i;
}

}  // namespace slipstream::linear
