// The inner loops: up to kMaxRows rows of x times one block of a panel, all sums in registers.
#pragma once

#include "linear_layout.hpp"
#include "vector.hpp"

namespace slipstream::linear {

constexpr int kMaxRows = 6;
constexpr int kLineBytes = 64;

// Consecutive inputs of a panel, as words. Its sums, or with scales those of each group times the group's scales, are
// added to the sums of the blocks before. (To start from them instead would make the first steps wait for loads that
// look as if they depended on the stores of the words.)
struct Block {
  const std::byte* words;  // [steps, 64]
  int inputs;
  const std::byte* scales;  // of the first group, float32 [64]; or none
  int64_t scales_stride;    // bytes from group to group
  int group;                // inputs of a group, if there are scales
  bool first;               // nothing is there yet
  bool continues = false;   // the chain of the block before goes on; without scales only
};

template <class T>
struct Steps;

template <>
struct Steps<float> {
  static constexpr int kInputs = 1;
  static simd::F32 broadcast(const float* x) { return simd::broadcast(*x); }
  static simd::F32 words(const std::byte* from) { return simd::load(reinterpret_cast<const float*>(from)); }
  static simd::F32 multiply(simd::F32 a, simd::F32 b, simd::F32 sum) { return simd::fma(a, b, sum); }
};

template <>
struct Steps<Bf16> {
  static constexpr int kInputs = 2;
  static simd::Pairs broadcast(const Bf16* x) { return simd::broadcast_pair(x); }
  static simd::Pairs words(const std::byte* from) { return simd::load_pairs(from); }
  static simd::F32 multiply(simd::Pairs a, simd::Pairs b, simd::F32 sum) { return simd::dot_pairs(sum, a, b); }
};

// Registers of outputs that go together: as many as leave room for the words, enough to hide the latency.
constexpr int vectors_of(int rows) {
  constexpr int kPanelVectors = kPanelOutputs / simd::kLanes;
  if (kPanelVectors == 4) return 4;
  return rows == 1 ? 8 : rows == 2 ? 4 : 2;
}

// One step of all rows and of ROWS * VECTORS sums.
template <class T, int ROWS, int VECTORS>
inline __attribute__((always_inline)) void step(const T* x, int64_t x_stride, const std::byte* words,
                                                simd::F32 (&sums)[ROWS][VECTORS]) {
  using S = Steps<T>;
  decltype(S::words(words)) w[VECTORS];
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; ++v) w[v] = S::words(words + v * simd::kLanes * kWordBytes);
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r) {
    const auto a = S::broadcast(x + r * x_stride);
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) sums[r][v] = S::multiply(a, w[v], sums[r][v]);
  }
}

// sums [ROWS, 64] += x [ROWS, inputs] * block, for VECTORS registers of outputs from `column` on. In each step it
// asks for AHEAD cache lines from `ahead` on.
template <class T, int ROWS, int VECTORS, int AHEAD>
inline void multiply_columns(const T* x, int64_t x_stride, const Block& block, int column, const std::byte* ahead,
                             float* sums) {
  constexpr int kInputs = Steps<T>::kInputs;
  const std::byte* words = block.words + column * kWordBytes;
  const std::byte* scales = block.scales;
  const int group = scales ? block.group : block.inputs;
  bool there = !block.first && !block.continues;
  sums += column;
  for (int begin = 0; begin < block.inputs; begin += group) {
    const int inputs = block.inputs - begin < group ? block.inputs - begin : group;
    simd::F32 acc[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) {
        acc[r][v] = block.continues ? simd::load(sums + r * kPanelOutputs + v * simd::kLanes) : simd::zero();
      }
    }
    const T* from = x + begin;
    for (int left = inputs / kInputs; left > 0; --left) {
#pragma GCC unroll 4
      for (int line = 0; line < AHEAD; ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead) + line * kLineBytes, _MM_HINT_T1);
      }
      ahead += AHEAD * kLineBytes;
      step<T, ROWS, VECTORS>(from, x_stride, words, acc);
      words += kStepBytes;
      from += kInputs;
    }
    if (inputs % kInputs) {
      T last[ROWS][kInputs] = {};
      for (int r = 0; r < ROWS; ++r) last[r][0] = from[r * x_stride];
      step<T, ROWS, VECTORS>(last[0], kInputs, words, acc);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) {
        float* to = sums + r * kPanelOutputs + v * simd::kLanes;
        if (scales) {
          const simd::F32 scale = simd::load(reinterpret_cast<const float*>(scales) + column + v * simd::kLanes);
          acc[r][v] = there ? simd::fma(acc[r][v], scale, simd::load(to)) : simd::mul(acc[r][v], scale);
        } else if (there) {
          acc[r][v] = simd::add(acc[r][v], simd::load(to));
        }
        simd::store(to, acc[r][v]);
      }
    }
    there = true;
    scales += scales ? block.scales_stride : 0;
  }
}

template <class T, int ROWS, int AHEAD>
void multiply_block(const T* x, int64_t x_stride, const Block& block, const std::byte* ahead, float* sums) {
  constexpr int kVectors = vectors_of(ROWS);
  multiply_columns<T, ROWS, kVectors, AHEAD>(x, x_stride, block, 0, ahead, sums);
  for (int column = kVectors * simd::kLanes; column < kPanelOutputs; column += kVectors * simd::kLanes) {
    multiply_columns<T, ROWS, kVectors, 0>(x, x_stride, block, column, nullptr, sums);
  }
}

template <class T>
using MultiplyBlock = void (*)(const T*, int64_t, const Block&, const std::byte*, float*);

// By rows - 1 and by the number of lines ahead: 0, 1, 2, 4.
template <class T>
MultiplyBlock<T> multiply_block_for(int rows, int lines_ahead) {
#define SLIPSTREAM_ROWS(R) \
  {multiply_block<T, R, 0>, multiply_block<T, R, 1>, multiply_block<T, R, 2>, multiply_block<T, R, 4>}
  static constexpr MultiplyBlock<T> kTable[kMaxRows][4] = {SLIPSTREAM_ROWS(1), SLIPSTREAM_ROWS(2), SLIPSTREAM_ROWS(3),
                                                           SLIPSTREAM_ROWS(4), SLIPSTREAM_ROWS(5), SLIPSTREAM_ROWS(6)};
#undef SLIPSTREAM_ROWS
  return kTable[rows - 1][lines_ahead == 4 ? 3 : lines_ahead];
}

}  // namespace slipstream::linear
