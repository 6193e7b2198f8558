// What becomes of the sums of a panel's outputs: scale, bias, and the way into y.
#pragma once

#include "linear_layout.hpp"
#include "vector.hpp"

namespace slipstream::linear {

// Columns [0, count) of a row of sums [64], `offset` from its start; y and bias point at their first number.
struct Part {
  const float* sums;
  const float* scales;  // [64], or none
  const float* bias;    // or none
};

inline simd::F32 finished(const Part& part, int column, int count) {
  simd::F32 value = simd::load(part.sums + column);
  if (part.scales) value = simd::mul(value, simd::load(part.scales + column));
  if (part.bias) value = simd::add(value, simd::load_some(part.bias + column, count));
  return value;
}

// Calls write(column, number of valid lanes) for each register of `count` columns.
template <class Write>
inline void for_each_register(int count, Write write) {
  for (int column = 0; column < count; column += simd::kLanes) {
    write(column, count - column < simd::kLanes ? count - column : simd::kLanes);
  }
}

template <class To>
inline void store_row(const Part& part, int count, To* y) {
  for_each_register(count, [&](int column, int lanes) {
    simd::store_some(y + column, finished(part, column, lanes), lanes);
  });
}

inline void add_row(const Part& part, int count, float* y) {
  for_each_register(count, [&](int column, int lanes) {
    const simd::F32 value = simd::add(simd::load_some(y + column, lanes), finished(part, column, lanes));
    simd::store_some(y + column, value, lanes);
  });
}

template <class To>
inline void silu_mul_row(const Part& gate, const Part& up, int count, To* y) {
  for_each_register(count, [&](int column, int lanes) {
    const simd::F32 value = simd::mul(simd::silu(finished(gate, column, lanes)), finished(up, column, lanes));
    simd::store_some(y + column, value, lanes);
  });
}

// One row of one panel.
template <class T>
inline void finish_row(const LinearCall& call, int panel, int row, const float* sums, const float* scales) {
  const WeightShape& shape = call.weight->shape;
  if (call.epilogue == Epilogue::silu_mul) {
    const int half = shape.outputs / 2, width = kPanelOutputs / 2, first = panel * width;
    const float* bias = call.bias ? call.bias + first : nullptr;
    const Part gate{sums, scales, bias};
    const Part up{sums + width, scales ? scales + width : nullptr, bias ? bias + half : nullptr};
    const int count = half - first < width ? half - first : width;
    return silu_mul_row(gate, up, count, static_cast<T*>(call.y) + row * call.y_stride + first);
  }
  const int first = panel * kPanelOutputs;
  const int count = shape.outputs - first < kPanelOutputs ? shape.outputs - first : kPanelOutputs;
  const Part part{sums, scales, call.bias ? call.bias + first : nullptr};
  const int64_t offset = row * call.y_stride + first;
  switch (call.epilogue) {
    case Epilogue::store: return store_row(part, count, static_cast<T*>(call.y) + offset);
    case Epilogue::store_f32: return store_row(part, count, static_cast<float*>(call.y) + offset);
    default: return add_row(part, count, static_cast<float*>(call.y) + offset);
  }
}

}  // namespace slipstream::linear
