// Codes of 8 and 4 bits into the words that the kernels multiply with, and bf16 into float32. Scales are not applied:
// every number is exact.
#pragma once

#include "linear_layout.hpp"
#include "vector.hpp"

namespace slipstream::linear {

// Words of two bf16 numbers into the words of float32: [steps, 64, 2] into [2 steps, 64].
inline void take_apart(const std::byte* words, int steps, float* to) {
  for (int step = 0; step < steps; ++step) {
    for (int column = 0; column < kPanelOutputs; column += simd::kLanes) {
      const auto [low, high] = simd::halves(simd::load_pairs(words + column * kWordBytes));
      simd::store(to + column, low);
      simd::store(to + kPanelOutputs + column, high);
    }
    words += kStepBytes;
    to += 2 * kPanelOutputs;
  }
}

inline void widen(const Bf16* from, int count, float* to) {
  int i = 0;
  for (; i + 4 * simd::kLanes <= count; i += 4 * simd::kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) simd::store(to + i + v * simd::kLanes, simd::load(from + i + v * simd::kLanes));
  }
  for (; i < count; i += simd::kLanes) {
    const int lanes = count - i < simd::kLanes ? count - i : simd::kLanes;
    simd::store_some(to + i, simd::load_some(from + i, lanes), lanes);
  }
}

// Eight codes of one byte each as float32.
inline __m256 int8_values(__m256i codes) {
  const __m256 magnitude = _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(0x7f)));
  return _mm256_or_ps(magnitude, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(codes, 7), 31)));
}

inline __m256 fp8_values(__m256i codes) {
  const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7f));
  // The exponents' biases are 7 and 127. The product is exact and makes normal numbers of e4m3's subnormal ones.
  const __m256 bits = _mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20));
  const __m256 value = _mm256_mul_ps(bits, _mm256_set1_ps(0x1p120f));
  const __m256 is_nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f)));
  const __m256 sign = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(codes, 7), 31));
  return _mm256_or_ps(_mm256_or_ps(value, sign), _mm256_and_ps(is_nan, _mm256_set1_ps(__builtin_nanf(""))));
}

// The codes of four outputs and both inputs of a step: e0 o0 e1 o1 e2 o2 e3 o3.
template <WeightKind KIND>
inline __m256 values_of_quarter(const std::byte* codes, const std::byte* zeros, int vector, int quarter) {
  if constexpr (KIND == WeightKind::int4) {
    const int at = quarter * 16 + vector * 4;
    uint32_t nibbles, zero;
    std::memcpy(&nibbles, codes + at, sizeof nibbles);
    std::memcpy(&zero, zeros + at, sizeof zero);
    const __m128i even = _mm_cvtsi32_si128(static_cast<int>(nibbles & 0x0f0f0f0fu));
    const __m128i odd = _mm_cvtsi32_si128(static_cast<int>(nibbles >> 4 & 0x0f0f0f0fu));
    const __m128i both = _mm_cvtsi32_si128(static_cast<int>(zero));
    const __m128i centred = _mm_sub_epi8(_mm_unpacklo_epi8(even, odd), _mm_unpacklo_epi8(both, both));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(centred));
  } else {
    const std::byte* at = codes + (vector / 2) * 64 + quarter * 16 + (vector % 2) * 8;
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    return KIND == WeightKind::int8 ? int8_values(wide) : fp8_values(wide);
  }
}

// e0 o0 e1 o1 e2 o2 e3 o3 to where the words of the step begin.
inline void store_quarter(__m256 values, int output, float* words) {
  const __m256 apart = _mm256_permutevar8x32_ps(values, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
  _mm_storeu_ps(words + output, _mm256_castps256_ps128(apart));
  _mm_storeu_ps(words + kPanelOutputs + output, _mm256_extractf128_ps(apart, 1));
}

inline void store_quarter(__m256 values, int output, Bf16* words) {
  const __m256i bits = _mm256_srli_epi32(_mm256_castps_si256(values), 16);  // exact
  const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words + 2 * output), halves);
}

// `pairs` pairs of inputs for the 64 outputs of a panel.
template <WeightKind KIND, class T>
inline void expand_codes(const std::byte* codes, const std::byte* zeros, int pairs, T* words) {
  for (int pair = 0; pair < pairs; ++pair) {
    for (int vector = 0; vector < 4; ++vector) {
      for (int quarter = 0; quarter < 4; ++quarter) {
        store_quarter(values_of_quarter<KIND>(codes, zeros, vector, quarter), vector * 16 + quarter * 4, words);
      }
    }
    codes += kPanelOutputs * (KIND == WeightKind::int4 ? 1 : 2);
    words += 2 * kPanelOutputs;
  }
}

#if defined(__AVX512VBMI__) && defined(__AVX512BF16__)

// The bytes of the bfloat16 number of each seven-bit index.
struct alignas(64) Table {
  uint8_t low[128];
  uint8_t high[128];
};

constexpr uint16_t bf16_bits_of(int magnitude, int exponent) {  // magnitude * 2^exponent, magnitude below 256
  if (magnitude == 0) return 0;
  int power = 0;
  while (magnitude >> (power + 1)) ++power;
  return static_cast<uint16_t>((127 + exponent + power) << 7 | ((magnitude << 7 >> power) & 0x7f));
}

template <class Bits>
constexpr Table make_table(Bits bits) {
  Table table{};
  for (int i = 0; i < 128; ++i) {
    table.low[i] = static_cast<uint8_t>(bits(i) & 0xff);
    table.high[i] = static_cast<uint8_t>(bits(i) >> 8);
  }
  return table;
}

template <WeightKind KIND>
constexpr Table table_of_kind() {
  if constexpr (KIND == WeightKind::int8) {
    return make_table([](int i) { return bf16_bits_of(i, 0); });
  } else if constexpr (KIND == WeightKind::int4) {  // code - zero in two's complement
    return make_table([](int i) { return bf16_bits_of(i < 64 ? i : 128 - i, 0); });
  } else {
    return make_table([](int i) {
      if (i == 127) return uint16_t{0x7fc0};
      return i < 8 ? bf16_bits_of(i, -9) : bf16_bits_of(8 + i % 8, i / 8 - 10);
    });
  }
}

template <WeightKind KIND>
alignas(64) inline constexpr Table kTable = table_of_kind<KIND>();

// 64 codes of 8 bits (see code_position) as 64 bfloat16 numbers, of outputs 16 v .. 16 v + 31.
struct Lookup {
  __m512i low[2], high[2];

  explicit Lookup(const Table& table)
      : low{_mm512_load_si512(table.low), _mm512_load_si512(table.low + 64)},
        high{_mm512_load_si512(table.high), _mm512_load_si512(table.high + 64)} {}

  void store(__m512i codes, Bf16* words) const {
    const __m512i lower = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i upper = _mm512_ternarylogic_epi32(magnitude, codes, sign, kOrAnd);
    _mm512_store_si512(words, _mm512_unpacklo_epi8(lower, upper));
    _mm512_store_si512(words + 32, _mm512_unpackhi_epi8(lower, upper));
  }
};

template <WeightKind KIND>
inline void expand_codes(const std::byte* codes, const std::byte* zeros, int pairs, Bf16* words) {
  const Lookup lookup(kTable<KIND>);
  [[maybe_unused]] const __m512i zero = KIND == WeightKind::int4 ? _mm512_loadu_si512(zeros) : _mm512_setzero_si512();
  for (int pair = 0; pair < pairs; ++pair) {
    if constexpr (KIND == WeightKind::int4) {
      const __m512i nibbles = _mm512_loadu_si512(codes), mask = _mm512_set1_epi8(15);
      const __m512i even = _mm512_sub_epi8(_mm512_and_si512(nibbles, mask), zero);
      const __m512i odd = _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(nibbles, 4), mask), zero);
      lookup.store(_mm512_unpacklo_epi8(even, odd), words);
      lookup.store(_mm512_unpackhi_epi8(even, odd), words + kPanelOutputs);
      codes += kPanelOutputs;
    } else {
      lookup.store(_mm512_loadu_si512(codes), words);
      lookup.store(_mm512_loadu_si512(codes + kPanelOutputs), words + kPanelOutputs);
      codes += 2 * kPanelOutputs;
    }
    words += 2 * kPanelOutputs;
  }
}

#endif

template <class T>
inline void expand(WeightKind kind, const std::byte* codes, const std::byte* zeros, int pairs, T* words) {
  switch (kind) {
    case WeightKind::int8: return expand_codes<WeightKind::int8>(codes, zeros, pairs, words);
    case WeightKind::fp8: return expand_codes<WeightKind::fp8>(codes, zeros, pairs, words);
    default: return expand_codes<WeightKind::int4>(codes, zeros, pairs, words);
  }
}

}  // namespace slipstream::linear
