// The inner loops: up to kMaxRows rows of x times one block of a panel, all sums in registers.
#pragma once

#include "linear_fetch.hpp"
#include "linear_layout.hpp"
#include "vector.hpp"

namespace slipstream::linear {

constexpr int kMaxRows = 6;

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

template <class T>
using MultiplyColumns = void (*)(const T*, int64_t, const Block&, int, const std::byte*, float*);

// Of some rows: `pass`, by the rate of lines ahead, takes `columns` outputs of a panel.
template <class T>
struct Kernel {
  int columns;
  MultiplyColumns<T> pass[kNumLinesAhead];

  constexpr int passes_of_panel() const { return kPanelOutputs / columns; }
};

template <class T, int ROWS>
constexpr Kernel<T> kernel_of_rows() {
  constexpr int V = vectors_of(ROWS);
  return {V * simd::kLanes,
          {multiply_columns<T, ROWS, V, kLinesAhead[0]>, multiply_columns<T, ROWS, V, kLinesAhead[1]>,
           multiply_columns<T, ROWS, V, kLinesAhead[2]>, multiply_columns<T, ROWS, V, kLinesAhead[3]>}};
}

template <class T>
const Kernel<T>& kernel_for(int rows) {
  static constexpr Kernel<T> kKernels[kMaxRows] = {kernel_of_rows<T, 1>(), kernel_of_rows<T, 2>(),
                                                   kernel_of_rows<T, 3>(), kernel_of_rows<T, 4>(),
                                                   kernel_of_rows<T, 5>(), kernel_of_rows<T, 6>()};
  return kKernels[rows - 1];
}

// sums [rows, 64] += x [rows, inputs] * block. The first pass asks for what is `ahead`.
template <class T>
inline void multiply_block(const T* x, int64_t x_stride, int rows, const Block& block, PassAhead ahead, float* sums) {
  const Kernel<T>& kernel = kernel_for<T>(rows);
  kernel.pass[ahead.rate](x, x_stride, block, 0, ahead.from, sums);
  for (int column = kernel.columns; column < kPanelOutputs; column += kernel.columns) {
    kernel.pass[0](x, x_stride, block, column, nullptr, sums);
  }
}

// The same; each pass asks for its part of `fetch`.
template <class T>
inline void multiply_piece(const T* x, int64_t x_stride, int rows, const Block& block, Fetch& fetch, float* sums) {
  const Kernel<T>& kernel = kernel_for<T>(rows);
  for (int column = 0; column < kPanelOutputs; column += kernel.columns) {
    const PassAhead ahead = fetch.next_pass();
    kernel.pass[ahead.rate](x, x_stride, block, column, ahead.from, sums);
  }
}

}  // namespace slipstream::linear
