// The arithmetic of one block of keys: small products, and the softmax between them.
//
// Numbers are multiplied as 32-bit words: two neighbouring bf16 numbers (PairMath), or one float (SingleMath).
#pragma once

#include "attention_ahead.hpp"
#include "vector.hpp"

namespace slipstream {

constexpr int kBlockKeys = 64;
constexpr float kNoScore = -1e30f;  // the running maximum of a row that has seen no key yet
// A row is scaled anew only when a score exceeds its running maximum by a factor of 2^8: rarely, and float32 has room.
constexpr float kRescaleAbove = 8.0f;

struct SingleMath {
  static constexpr int kPerWord = 1;
  static simd::F32 dot(simd::F32 acc, simd::F32 a, simd::F32 b) { return simd::fma(a, b, acc); }
};

#if defined(__AVX512BF16__)
struct PairMath {
  static constexpr int kPerWord = 2;
  static simd::F32 dot(simd::F32 acc, simd::F32 a, simd::F32 b) {
    return simd::dot_pairs(acc, _mm512_castps_si512(a), _mm512_castps_si512(b));
  }
};
constexpr int kMaxRows = 6;  // times kMaxVectors accumulators stay in the 32 registers
#else
constexpr int kMaxRows = 3;  // of 16 registers
#endif
constexpr int kMaxVectors = 4;
constexpr int kRowsOfDecoding = 16;  // of a tile: with that few, reading is what takes time

// c [kRows, kVectors * kLanes] = a [kRows, steps words] times b [steps, ...words], added to c if `accumulate`.
// Every number is one chain of multiply-adds in order of the steps, whatever kRows and kVectors.
template <class Math, int kRows, int kVectors, class StepsAhead>
void multiply_tile(const float* a, int a_stride, const float* b, int b_stride, int steps, float* c, int c_stride,
                   bool accumulate, StepsAhead& ahead) {
  using namespace simd;
  F32 acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      acc[row][v] = accumulate ? load(c + row * c_stride + v * kLanes) : zero();
    }
  }
  for (int step = 0; step < steps; ++step, b += b_stride) {
    ahead.template fetch<kAheadOfStep>();
    F32 word[kRows];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) word[row] = broadcast(a[row * a_stride + step]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const F32 column = load(b + v * kLanes);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) acc[row][v] = Math::dot(acc[row][v], word[row], column);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(c + row * c_stride + v * kLanes, acc[row][v]);
  }
}

template <class Math, int kRows, class StepsAhead>
void multiply_rows(const float* a, int a_stride, const float* b, int b_stride, int steps, float* c, int c_stride,
                   int vectors, bool accumulate, StepsAhead& ahead) {
  for (; vectors >= kMaxVectors; vectors -= kMaxVectors) {
    multiply_tile<Math, kRows, kMaxVectors>(a, a_stride, b, b_stride, steps, c, c_stride, accumulate, ahead);
    b += kMaxVectors * simd::kLanes;
    c += kMaxVectors * simd::kLanes;
  }
  switch (vectors) {
    case 1: return multiply_tile<Math, kRows, 1>(a, a_stride, b, b_stride, steps, c, c_stride, accumulate, ahead);
    case 2: return multiply_tile<Math, kRows, 2>(a, a_stride, b, b_stride, steps, c, c_stride, accumulate, ahead);
    case 3: return multiply_tile<Math, kRows, 3>(a, a_stride, b, b_stride, steps, c, c_stride, accumulate, ahead);
    default: return;
  }
}

// Up to kMaxRows rows, any number of vectors.
template <class Math, class StepsAhead>
void multiply(int rows, const float* a, int a_stride, const float* b, int b_stride, int steps, float* c, int c_stride,
              int vectors, bool accumulate, StepsAhead& ahead) {
  switch (rows) {
    case 1: return multiply_rows<Math, 1>(a, a_stride, b, b_stride, steps, c, c_stride, vectors, accumulate, ahead);
    case 2: return multiply_rows<Math, 2>(a, a_stride, b, b_stride, steps, c, c_stride, vectors, accumulate, ahead);
    case 3: return multiply_rows<Math, 3>(a, a_stride, b, b_stride, steps, c, c_stride, vectors, accumulate, ahead);
#if defined(__AVX512F__)
    case 4: return multiply_rows<Math, 4>(a, a_stride, b, b_stride, steps, c, c_stride, vectors, accumulate, ahead);
    case 5: return multiply_rows<Math, 5>(a, a_stride, b, b_stride, steps, c, c_stride, vectors, accumulate, ahead);
    default: return multiply_rows<Math, 6>(a, a_stride, b, b_stride, steps, c, c_stride, vectors, accumulate, ahead);
#endif
  }
}

// What a row has gathered so far: sum of values weighted by 2^(score - most), and the sums of these weights by lane.
struct RowState {
  float* most;    // [rows]
  float* total;   // [rows, kLanes]
  float* values;  // [rows, width]
  int width;      // of a row of values, a multiple of kLanes
};

inline void clear(const RowState& state, int row) {
  using namespace simd;
  state.most[row] = kNoScore;
  store(state.total + row * kLanes, zero());
  for (int i = 0; i < state.width; i += kLanes) store(state.values + row * state.width + i, zero());
}

// Makes room for a new maximum: everything is weighted against it from now on.
inline void raise_most(const RowState& state, int row, float most) {
  using namespace simd;
  const F32 factor = exp2(broadcast(state.most[row] - most));
  state.most[row] = most;
  store(state.total + row * kLanes, mul(load(state.total + row * kLanes), factor));
  float* values = state.values + row * state.width;
  for (int i = 0; i < state.width; i += kLanes) store(values + i, mul(load(values + i), factor));
}

struct Scales {
  float all;            // log2(e) times the attention scale
  float cap;            // log2(e) times the cap of scores, or 0
  const float* keys;    // [kBlockKeys] that times the scales of the keys' codes, or nullptr
  const float* values;  // [kBlockKeys] those of the values' codes, or nullptr
};

// The scores of a row, and which keys of the block it sees: first .. last (last excluded, both may lie outside).
struct RowScores {
  int row;
  const float* scores;
  int first;
  int last;
};

// Stores weights 2^(score * scale - most), zero for keys that the row does not see, and counts them into its total.
template <int kVectors, class Weight>
void weigh_vectors(const RowState& state, const RowScores& row, const Scales& scales, Weight* weights) {
  using namespace simd;
  F32 x[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const F32 scale = scales.keys == nullptr ? broadcast(scales.all) : load(scales.keys + v * kLanes);
    x[v] = mul(load(row.scores + v * kLanes), scale);
  }
  if (scales.cap > 0) {
    const F32 cap = broadcast(scales.cap), inverse = broadcast(1.0f / scales.cap);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = mul(cap, tanh(mul(x[v], inverse)));
  }
  if (row.first > 0 || row.last < kVectors * kLanes) {
    const F32 none = broadcast(-INFINITY);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = keep_lanes(x[v], row.first - v * kLanes, row.last - v * kLanes, none);
  }
  F32 most = x[0];
#pragma GCC unroll 8
  for (int v = 1; v < kVectors; ++v) most = max(most, x[v]);
  if (any_greater(most, broadcast(state.most[row.row] + kRescaleAbove))) raise_most(state, row.row, reduce_max(most));
  most = broadcast(state.most[row.row]);
  F32 total = load(state.total + row.row * kLanes);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    x[v] = exp2(sub(x[v], most));
    total = add(total, x[v]);
  }
  store(state.total + row.row * kLanes, total);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    if (scales.values != nullptr) x[v] = mul(x[v], load(scales.values + v * kLanes));
    store(weights + v * kLanes, x[v]);
  }
}

template <class Weight>
void weigh(const RowState& state, const RowScores& row, int num_vectors, const Scales& scales, Weight* weights) {
  switch (num_vectors) {
    case 1: return weigh_vectors<1>(state, row, scales, weights);
    case 2: return weigh_vectors<2>(state, row, scales, weights);
    case 3: return weigh_vectors<3>(state, row, scales, weights);
    case 4: return weigh_vectors<4>(state, row, scales, weights);
#if !defined(__AVX512F__)
    case 5: return weigh_vectors<5>(state, row, scales, weights);
    case 6: return weigh_vectors<6>(state, row, scales, weights);
    case 7: return weigh_vectors<7>(state, row, scales, weights);
    case 8: return weigh_vectors<8>(state, row, scales, weights);
#endif
    default: return;
  }
}

}  // namespace slipstream
