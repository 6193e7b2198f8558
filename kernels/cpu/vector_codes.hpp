// Words for products: numbers and 8-bit codes as 32-bit words of one float or of two neighbouring bf16 numbers, and
// what turns squares of words around.
#pragma once

#include <algorithm>

#include "vector.hpp"

namespace slipstream {

struct Int8 {
  int8_t code;
};

// float8_e4m3fn: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, 0x7f is nan.
struct Fp8 {
  uint8_t code;
};

template <class Code>
inline constexpr bool kHasScales = false;
template <>
inline constexpr bool kHasScales<Int8> = true;
template <>
inline constexpr bool kHasScales<Fp8> = true;

namespace simd {

#if defined(__AVX512F__)

inline F32 as_f32(I32 words) { return _mm512_castsi512_ps(words); }
inline I32 as_words(F32 x) { return _mm512_castps_si512(x); }

inline __m128i load_codes(const void* from, int count) { return _mm_maskz_loadu_epi8(first_lanes(count), from); }
inline F32 load_some(const Int8* from, int count) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_codes(from, count)));
}
inline F32 load_some(const Fp8* from, int count) {
  const I32 code = _mm512_cvtepu8_epi32(load_codes(from, count));
  const I32 sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
  const I32 size = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
  const F32 normal = as_f32(_mm512_add_epi32(_mm512_slli_epi32(size, 20), _mm512_set1_epi32(120 << 23)));
  const F32 subnormal = mul(_mm512_cvtepi32_ps(size), broadcast(0x1p-9f));
  const __mmask16 small = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(8));
  return as_f32(_mm512_or_si512(as_words(_mm512_mask_mov_ps(normal, small, subnormal)), sign));
}

// Numbers from -127 to 127 are rounded to the nearest even.
inline void store_codes(Int8* to, F32 x, int count) {
  _mm_mask_storeu_epi8(to, first_lanes(count), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
// Numbers from -448 to 448 are rounded to the nearest even.
inline void store_codes(Fp8* to, F32 x, int count) {
  const I32 bits = as_words(absolute(x));
  const I32 odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  const I32 rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
  const I32 normal = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(120 << 3));
  const I32 subnormal = _mm512_cvtps_epi32(mul(absolute(x), broadcast(0x1p9f)));
  const __mmask16 small = _mm512_cmp_ps_mask(absolute(x), broadcast(0x1p-6f), _CMP_LT_OQ);
  const I32 sign = _mm512_and_si512(_mm512_srli_epi32(as_words(x), 24), _mm512_set1_epi32(0x80));
  const I32 code = _mm512_or_si512(_mm512_mask_mov_epi32(normal, small, subnormal), sign);
  _mm_mask_storeu_epi8(to, first_lanes(count), _mm512_cvtepi32_epi8(code));
}

// Turns square[i][j] into square[j][i].
inline void transpose(F32 (&square)[16]) {
  F32 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(square[i], square[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(square[i], square[i + 1]);
  }
  F32 u[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const auto low = [&](int a, int b) {
      return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[a]), _mm512_castps_pd(t[b])));
    };
    const auto high = [&](int a, int b) {
      return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[a]), _mm512_castps_pd(t[b])));
    };
    u[i] = low(i, i + 2);
    u[i + 1] = high(i, i + 2);
    u[i + 2] = low(i + 1, i + 3);
    u[i + 3] = high(i + 1, i + 3);
  }
  // u[4 i + j] holds column 4 k + j of rows 4 i .. 4 i + 3 in its quarter k.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const F32 even01 = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x88);
    const F32 odd01 = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xdd);
    const F32 even23 = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x88);
    const F32 odd23 = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xdd);
    square[j] = _mm512_shuffle_f32x4(even01, even23, 0x88);
    square[4 + j] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
    square[8 + j] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
    square[12 + j] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
  }
}

// The bf16 numbers of two vectors in turn, a b a b ..: those of the low and those of the high halves.
inline F32 zip_low(F32 a, F32 b) {
  const I32 order = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                     36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  return as_f32(_mm512_permutex2var_epi16(as_words(a), order, as_words(b)));
}
inline F32 zip_high(F32 a, F32 b) {
  const I32 order = _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23, 54, 22, 53,
                                     21, 52, 20, 51, 19, 50, 18, 49, 17, 48, 16);
  return as_f32(_mm512_permutex2var_epi16(as_words(a), order, as_words(b)));
}

// 32 codes as bf16 numbers, exactly.
inline F32 widen_to_pairs(const Int8* from) {
  const auto floats = [](const Int8* codes) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    return as_words(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  };
  // The high halves of the floats: what is cut off is zero.
  const I32 order = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                                     21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return as_f32(_mm512_permutex2var_epi16(floats(from), order, floats(from + 16)));
}
inline F32 widen_to_pairs(const Fp8* from) {
  const I32 code = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  const I32 sign = _mm512_slli_epi16(_mm512_and_si512(code, _mm512_set1_epi16(0x80)), 8);
  const I32 size = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
  const I32 normal = _mm512_add_epi16(_mm512_slli_epi16(size, 4), _mm512_set1_epi16(120 << 7));
  // 0 to 7 times 2^-9
  const I32 subnormals =
      _mm512_castsi128_si512(_mm_set_epi16(0x3c60, 0x3c40, 0x3c20, 0x3c00, 0x3bc0, 0x3b80, 0x3b00, 0));
  const __mmask32 small = _mm512_cmplt_epi16_mask(size, _mm512_set1_epi16(8));
  return as_f32(_mm512_or_si512(_mm512_mask_permutexvar_epi16(normal, small, size, subnormals), sign));
}

// The first `count` words of pairs, zeros behind them.
inline F32 load_pair_words(const Bf16* from, int count) {
  return as_f32(_mm512_maskz_loadu_epi32(first_lanes(count), from));
}
template <class Code>
inline F32 load_pair_words(const Code* from, int count) {
  if (count == kLanes) return widen_to_pairs(from);
  Code some[2 * kLanes] = {};
  std::memcpy(some, from, static_cast<size_t>(2 * count));
  return widen_to_pairs(some);
}

// Words of one number of either row, `count` of them, filled up with zeros to a whole vector.
template <class Code>
inline void interleave(const Code* a, const Code* b, int count, float* words) {
  for (int i = 0; i < count; i += 2 * kLanes) {
    const int left = std::min(count - i, 2 * kLanes);
    const F32 low = load_pair_words(a + i, left / 2);
    const F32 high = load_pair_words(b + i, left / 2);
    store(words + i, zip_low(low, high));
    if (left > kLanes) store(words + i + kLanes, zip_high(low, high));
  }
}

#else

inline F32 as_f32(I32 words) { return _mm256_castsi256_ps(words); }
inline I32 as_words(F32 x) { return _mm256_castps_si256(x); }

inline __m128i load_codes(const void* from, int count) {
  if (count == kLanes) return _mm_loadl_epi64(static_cast<const __m128i*>(from));
  uint64_t codes = 0;
  std::memcpy(&codes, from, static_cast<size_t>(count));
  return _mm_cvtsi64_si128(static_cast<long long>(codes));
}
inline F32 load_some(const Int8* from, int count) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_codes(from, count)));
}
inline F32 load_some(const Fp8* from, int count) {
  const I32 code = _mm256_cvtepu8_epi32(load_codes(from, count));
  const I32 sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
  const I32 size = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  const F32 normal = as_f32(_mm256_add_epi32(_mm256_slli_epi32(size, 20), _mm256_set1_epi32(120 << 23)));
  const F32 subnormal = mul(_mm256_cvtepi32_ps(size), broadcast(0x1p-9f));
  const I32 small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), size);
  return as_f32(_mm256_or_si256(as_words(_mm256_blendv_ps(normal, subnormal, as_f32(small))), sign));
}

inline void store_low_bytes(void* to, I32 words, int count) {
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  const __m128i packed = _mm_packs_epi16(halves, halves);
  if (count == kLanes) return _mm_storel_epi64(static_cast<__m128i*>(to), packed);
  const auto bytes = static_cast<uint64_t>(_mm_cvtsi128_si64(packed));
  std::memcpy(to, &bytes, static_cast<size_t>(count));
}
// Numbers from -127 to 127 are rounded to the nearest even.
inline void store_codes(Int8* to, F32 x, int count) { store_low_bytes(to, _mm256_cvtps_epi32(x), count); }
// Numbers from -448 to 448 are rounded to the nearest even.
inline void store_codes(Fp8* to, F32 x, int count) {
  const I32 bits = as_words(absolute(x));
  const I32 odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
  const I32 rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff)));
  const I32 normal = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
  const I32 subnormal = _mm256_cvtps_epi32(mul(absolute(x), broadcast(0x1p9f)));
  const F32 small = _mm256_cmp_ps(absolute(x), broadcast(0x1p-6f), _CMP_LT_OQ);
  const F32 size = _mm256_blendv_ps(as_f32(normal), as_f32(subnormal), small);
  // The sign goes all the way up, so that packing does not saturate it.
  const I32 sign = _mm256_and_si256(_mm256_srai_epi32(as_words(x), 31), _mm256_set1_epi32(-128));
  store_low_bytes(to, _mm256_or_si256(as_words(size), sign), count);
}

// Turns square[i][j] into square[j][i].
inline void transpose(F32 (&square)[8]) {
  F32 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(square[i], square[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(square[i], square[i + 1]);
  }
  F32 u[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    square[j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x20);
    square[4 + j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x31);
  }
}

#endif

// Words of kPerWord numbers each: the first `count` of a row, zeros behind them.
template <int kPerWord, class Code>
inline F32 load_words(const Code* from, int count) {
  if constexpr (kPerWord == 1) {
    return load_some(from, count);
  } else {
    return load_pair_words(from, count);
  }
}

}  // namespace simd
}  // namespace slipstream
