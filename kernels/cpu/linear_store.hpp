// What becomes of the sums of a panel's outputs: scale, bias, and the way into y.
#pragma once

#include "linear_layout.hpp"
#include "vector.hpp"

namespace slipstream::linear {

// Rows of a panel, and what they are finished with. All pointers are at the panel's first output.
struct Sums {
  const float* values;  // [rows, 64]
  int rows;
  const float* scales;  // [64], or none
  const float* bias;    // [64 or fewer], or none
};

// All lanes of a register, or the first few: panels are whole, but for the last one.
template <bool WHOLE, class T>
inline simd::F32 load_lanes(const T* from, int lanes) {
  return WHOLE ? simd::load(from) : simd::load_some(from, lanes);
}

template <bool WHOLE, class T>
inline void store_lanes(T* to, simd::F32 value, int lanes) {
  if constexpr (WHOLE) {
    simd::store(to, value);
  } else {
    simd::store_some(to, value, lanes);
  }
}

template <bool WHOLE>
inline simd::F32 finished(const Sums& sums, int row, int column, const float* bias, int lanes) {
  simd::F32 value = simd::load(sums.values + row * kPanelOutputs + column);
  if (sums.scales) value = simd::mul(value, simd::load(sums.scales + column));
  if (bias) value = simd::add(value, load_lanes<WHOLE>(bias, lanes));
  return value;
}

struct Identity {
  simd::F32 operator()(simd::F32 x) const { return x; }
};

struct GeluTanh {
  simd::F32 operator()(simd::F32 x) const { return simd::gelu_tanh(x); }
};

struct Gelu {
  simd::F32 operator()(simd::F32 x) const { return simd::gelu(x); }
};

struct Relu {
  simd::F32 operator()(simd::F32 x) const { return simd::max(simd::zero(), x); }  // in this order, a nan stays
};

struct Silu {
  simd::F32 operator()(simd::F32 x) const { return simd::silu(x); }
};

template <bool WHOLE, bool ADD, class Function, class To>
inline void store_rows(const Function& function, const Sums& sums, int count, To* y, int64_t y_stride) {
  for (int row = 0; row < sums.rows; ++row, y += y_stride) {
    for (int column = 0; column < count; column += simd::kLanes) {
      const int lanes = count - column < simd::kLanes ? count - column : simd::kLanes;
      simd::F32 value = finished<WHOLE>(sums, row, column, sums.bias ? sums.bias + column : nullptr, lanes);
      if constexpr (ADD) value = simd::add(load_lanes<WHOLE>(y + column, lanes), value);
      store_lanes<WHOLE>(y + column, function(value), lanes);
    }
  }
}

struct SiluMul {
  simd::F32 operator()(simd::F32 gate, simd::F32 up) const { return simd::mul(simd::silu(gate), up); }
};

struct GeluMul {
  simd::F32 operator()(simd::F32 gate, simd::F32 up) const { return simd::mul(simd::gelu_tanh(gate), up); }
};

struct ClampedSwiglu {
  float alpha, limit;

  simd::F32 operator()(simd::F32 gate, simd::F32 up) const {
    const simd::F32 most = simd::broadcast(limit), least = simd::broadcast(-limit);
    gate = simd::min(most, gate);  // in this order, a nan stays
    up = simd::max(least, simd::min(most, up));
    return simd::mul(simd::add(up, simd::broadcast(1.0f)), simd::sigmoid_mul(gate, simd::broadcast(alpha)));
  }
};

// The first half of the panel are gates, the other half the numbers that they let through; `up_bias` belongs to those.
template <bool WHOLE, class Gate, class To>
inline void gated_rows(const Gate& gated, const Sums& sums, const float* up_bias, int count, To* y, int64_t y_stride) {
  constexpr int kWidth = kPanelOutputs / 2;
  for (int row = 0; row < sums.rows; ++row, y += y_stride) {
    for (int column = 0; column < count; column += simd::kLanes) {
      const int lanes = count - column < simd::kLanes ? count - column : simd::kLanes;
      const simd::F32 gate = finished<WHOLE>(sums, row, column, sums.bias ? sums.bias + column : nullptr, lanes);
      const simd::F32 up = finished<WHOLE>(sums, row, kWidth + column, up_bias ? up_bias + column : nullptr, lanes);
      store_lanes<WHOLE>(y + column, gated(gate, up), lanes);
    }
  }
}

template <class Gate, class To>
inline void gated_panel(const Gate& gated, const Sums& sums, const float* up_bias, int count, To* y, int64_t y_stride) {
  constexpr int kWidth = kPanelOutputs / 2;
  if (count == kWidth) {
    gated_rows<true>(gated, sums, up_bias, kWidth, y, y_stride);
  } else {
    gated_rows<false>(gated, sums, up_bias, count, y, y_stride);
  }
}

template <bool ADD, class Function, class To>
inline void store_panel(const Function& function, const Sums& sums, int count, To* y, int64_t y_stride) {
  if (count == kPanelOutputs) {
    store_rows<true, ADD>(function, sums, kPanelOutputs, y, y_stride);
  } else {
    store_rows<false, ADD>(function, sums, count, y, y_stride);
  }
}

// Rows `first_row` on of panel `panel`.
template <class T>
inline void finish_rows(const LinearCall& call, int panel, int first_row, int rows, const float* values,
                        const float* scales) {
  const WeightShape& shape = call.weight->shape;
  const bool paired = is_gated(call.epilogue);
  const int outputs = paired ? shape.outputs / 2 : shape.outputs, width = paired ? kPanelOutputs / 2 : kPanelOutputs;
  const int first = panel * width, count = outputs - first < width ? outputs - first : width;
  const Sums sums{values, rows, scales, call.bias ? call.bias + first : nullptr};
  const int64_t offset = first_row * call.y_stride + first;
  T* typed_y = static_cast<T*>(call.y) + offset;
  float* wide_y = static_cast<float*>(call.y) + offset;
  if (paired) {
    const float* up_bias = sums.bias ? sums.bias + outputs : nullptr;
    if (call.epilogue == Epilogue::silu_mul) {
      gated_panel(SiluMul{}, sums, up_bias, count, typed_y, call.y_stride);
    } else if (call.epilogue == Epilogue::gelu_mul) {
      gated_panel(GeluMul{}, sums, up_bias, count, typed_y, call.y_stride);
    } else {
      gated_panel(ClampedSwiglu{call.alpha, call.limit}, sums, up_bias, count, typed_y, call.y_stride);
    }
    return;
  }
  switch (call.epilogue) {
    case Epilogue::store_f32: return store_panel<false>(Identity{}, sums, count, wide_y, call.y_stride);
    case Epilogue::add_residual: return store_panel<true>(Identity{}, sums, count, wide_y, call.y_stride);
    case Epilogue::gelu_tanh: return store_panel<false>(GeluTanh{}, sums, count, typed_y, call.y_stride);
    case Epilogue::gelu: return store_panel<false>(Gelu{}, sums, count, typed_y, call.y_stride);
    case Epilogue::relu: return store_panel<false>(Relu{}, sums, count, typed_y, call.y_stride);
    case Epilogue::silu: return store_panel<false>(Silu{}, sums, count, typed_y, call.y_stride);
    default: return store_panel<false>(Identity{}, sums, count, typed_y, call.y_stride);
  }
}

}  // namespace slipstream::linear
