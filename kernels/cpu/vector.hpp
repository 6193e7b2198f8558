// The vector vocabulary of the CPU kernels, for AVX-512 (with bf16 dot products) and for AVX2 with FMA.
//
// F32 holds kLanes floats. Pairs holds kLanes 32-bit words of two neighbouring bf16 numbers each, the first in the low
// half. All operations are exact or correctly rounded, but for exp; none depends on anything but its arguments.
#pragma once

// GCC's own header initialises "undefined" vectors with themselves (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cmath>
#include <cstdint>
#include <cstring>

namespace slipstream {

// A bfloat16 number as it lies in memory.
struct Bf16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(Bf16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to nearest even; a nan stays a (quiet) nan.
inline Bf16 to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

namespace simd {

#if defined(__AVX512F__)
#if !defined(__AVX512BF16__)
#error "AVX-512 without bf16 products is built for AVX2"
#endif

constexpr int kLanes = 16;
using F32 = __m512;
using I32 = __m512i;
using Pairs = __m512i;
struct Halves {
  F32 low, high;
};

inline F32 zero() { return _mm512_setzero_ps(); }
inline F32 broadcast(float x) { return _mm512_set1_ps(x); }
inline F32 load(const float* from) { return _mm512_loadu_ps(from); }
inline F32 load(const Bf16* from) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }
// The first `count` (0 to kLanes) numbers, zeros behind them; memory behind them is not touched.
inline F32 load_some(const float* from, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), from); }
inline F32 load_some(const Bf16* from, int count) {
  const __m256i half = _mm256_maskz_loadu_epi16(first_lanes(count), from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
inline __m256i round_to_bf16(F32 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
inline void store(float* to, F32 x) { _mm512_storeu_ps(to, x); }
inline void store(Bf16* to, F32 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), round_to_bf16(x)); }
inline void store_some(float* to, F32 x, int count) { _mm512_mask_storeu_ps(to, first_lanes(count), x); }
inline void store_some(Bf16* to, F32 x, int count) {
  _mm256_mask_storeu_epi16(to, first_lanes(count), round_to_bf16(x));
}

inline F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
inline F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
inline F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
inline F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
inline F32 fnma(F32 a, F32 b, F32 c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
inline F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }                // b where either is nan
inline F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }                // b where either is nan
inline F32 absolute(F32 x) { return _mm512_abs_ps(x); }
// `size`, which is not negative, with the sign of `x`.
inline F32 with_sign_of(F32 size, F32 x) { return _mm512_or_ps(size, _mm512_and_ps(x, _mm512_set1_ps(-0.0f))); }
// `less` where a < b, `otherwise` elsewhere, and where either is nan.
inline F32 choose_less(F32 a, F32 b, F32 less, F32 otherwise) {
  return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), less);
}
inline F32 round(F32 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x in lanes first .. last (last excluded, both may lie outside), `otherwise` in the others.
inline F32 keep_lanes(F32 x, int first, int last, F32 otherwise) {
  const I32 lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 from = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first));
  return _mm512_mask_mov_ps(otherwise, _mm512_mask_cmplt_epi32_mask(from, lane, _mm512_set1_epi32(last)), x);
}
inline bool any_greater(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
inline bool any_nan(F32 x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
inline float first_lane(F32 x) { return _mm512_cvtss_f32(x); }
inline float reduce_add(F32 x) { return _mm512_reduce_add_ps(x); }
inline float reduce_max(F32 x) { return _mm512_reduce_max_ps(x); }

// A whole number as a power of two.
struct Power {
  F32 exponent;
};
constexpr float kLeastExponent = -180;  // for which 2^exponent is zero
inline Power nearest_power(F32 exponent) { return {round(exponent)}; }
inline F32 scale(F32 x, Power power) { return _mm512_scalef_ps(x, power.exponent); }

inline Pairs load_pairs(const void* from) { return _mm512_loadu_si512(from); }
inline Halves halves(Pairs words) {
  const I32 high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)), _mm512_castsi512_ps(_mm512_and_si512(words, high))};
}
inline Pairs broadcast_pair(const void* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof word);
  return _mm512_set1_epi32(word);
}
// acc + the products of both halves of each word.
inline F32 dot_pairs(F32 acc, Pairs a, Pairs b) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

#elif defined(__AVX2__) && defined(__FMA__)

constexpr int kLanes = 8;
using F32 = __m256;
using I32 = __m256i;
using Pairs = __m256i;
struct Halves {
  F32 low, high;
};

inline F32 zero() { return _mm256_setzero_ps(); }
inline F32 broadcast(float x) { return _mm256_set1_ps(x); }
inline F32 load(const float* from) { return _mm256_loadu_ps(from); }
inline F32 load(const Bf16* from) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline __m256i first_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first `count` (0 to kLanes) numbers, zeros behind them; memory behind them is not touched.
inline F32 load_some(const float* from, int count) { return _mm256_maskload_ps(from, first_lanes(count)); }
inline F32 load_some(const Bf16* from, int count) {
  if (count == kLanes) return load(from);
  Bf16 some[kLanes] = {};
  std::memcpy(some, from, sizeof(Bf16) * static_cast<size_t>(count));
  return load(some);
}
inline __m128i round_to_bf16(F32 x) {
  const I32 bits = _mm256_castps_si256(x);
  const I32 odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const I32 rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const I32 quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const I32 is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const I32 words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
inline void store(float* to, F32 x) { _mm256_storeu_ps(to, x); }
inline void store(Bf16* to, F32 x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), round_to_bf16(x)); }
inline void store_some(float* to, F32 x, int count) {
  if (count == kLanes) return store(to, x);  // a store by mask takes Zen 3 as long as a dozen others
  _mm256_maskstore_ps(to, first_lanes(count), x);
}
inline void store_some(Bf16* to, F32 x, int count) {
  if (count == kLanes) return store(to, x);
  Bf16 some[kLanes];
  store(some, x);
  std::memcpy(to, some, sizeof(Bf16) * static_cast<size_t>(count));
}

inline F32 add(F32 a, F32 b) { return _mm256_add_ps(a, b); }
inline F32 sub(F32 a, F32 b) { return _mm256_sub_ps(a, b); }
inline F32 mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
inline F32 div(F32 a, F32 b) { return _mm256_div_ps(a, b); }
inline F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
inline F32 fnma(F32 a, F32 b, F32 c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
inline F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }                // b where either is nan
inline F32 min(F32 a, F32 b) { return _mm256_min_ps(a, b); }                // b where either is nan
inline F32 absolute(F32 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
// `size`, which is not negative, with the sign of `x`.
inline F32 with_sign_of(F32 size, F32 x) { return _mm256_or_ps(size, _mm256_and_ps(x, _mm256_set1_ps(-0.0f))); }
// `less` where a < b, `otherwise` elsewhere, and where either is nan.
inline F32 choose_less(F32 a, F32 b, F32 less, F32 otherwise) {
  return _mm256_blendv_ps(otherwise, less, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
// x in lanes first .. last (last excluded, both may lie outside), `otherwise` in the others.
inline F32 keep_lanes(F32 x, int first, int last, F32 otherwise) {
  const I32 lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const I32 before = _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane);
  const I32 kept = _mm256_andnot_si256(before, _mm256_cmpgt_epi32(_mm256_set1_epi32(last), lane));
  return _mm256_blendv_ps(otherwise, x, _mm256_castsi256_ps(kept));
}
inline bool any_greater(F32 a, F32 b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
inline bool any_nan(F32 x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }
inline float first_lane(F32 x) { return _mm256_cvtss_f32(x); }
inline float reduce_add(F32 x) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
inline float reduce_max(F32 x) {
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

// A whole number as a power of two.
struct Power {
  F32 exponent;
  F32 number;  // 2^exponent
};
constexpr float kLeastExponent = -127;  // for which 2^exponent is zero here
// Beside this constant, the last bits of a float32 are those of the nearest whole number, plus the exponents' bias.
inline Power nearest_power(F32 exponent) {
  const F32 constant = broadcast(0x1.8p23f + 127);
  const F32 biased = add(exponent, constant);
  return {sub(biased, constant), _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(biased), 23))};
}
inline F32 scale(F32 x, Power power) { return mul(x, power.number); }

inline Pairs load_pairs(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline Halves halves(Pairs words) {
  const I32 high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)), _mm256_castsi256_ps(_mm256_and_si256(words, high))};
}
inline Pairs broadcast_pair(const void* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof word);
  return _mm256_set1_epi32(word);
}
// acc + the products of both halves of each word: first the low halves, then the high ones.
inline F32 dot_pairs(F32 acc, Pairs a, Pairs b) {
  const Halves x = halves(a), y = halves(b);
  return fma(x.high, y.high, fma(x.low, y.low, acc));
}

#else
#error "the CPU kernels are built for AVX-512 or for AVX2 with FMA"
#endif

// 2^x, to 2e-7 of itself; 0 below kLeastExponent and for -inf, nan for nan. x up to 127.
inline F32 exp2(F32 x) {
  x = max(broadcast(kLeastExponent), x);  // in this order, a nan stays
  const Power whole = nearest_power(x);
  const F32 part = sub(x, whole.exponent);
  // The polynomial of this degree that is nearest to 2^part on [-1/2, 1/2] in relative terms, with 2^0 = 1.
  F32 y = broadcast(1.32647273e-3f);
  y = fma(y, part, broadcast(9.67151299e-3f));
  y = fma(y, part, broadcast(5.55073358e-2f));
  y = fma(y, part, broadcast(2.40222424e-1f));
  y = fma(y, part, broadcast(6.93147004e-1f));
  y = fma(y, part, broadcast(1.0f));
  return scale(y, whole);
}

// e^x; like exp2, and the argument costs it another few units where it is large.
inline F32 exp(F32 x) { return exp2(mul(x, broadcast(1.44269504f))); }

// x / (1 + e^(-alpha x))
inline F32 sigmoid_mul(F32 x, F32 alpha) {
  const F32 negative = min(broadcast(88.0f), sub(zero(), mul(alpha, x)));
  return div(x, add(broadcast(1.0f), exp(negative)));
}

// By Cephes' tanhf (https://netlib.org/cephes): a polynomial near zero, where the quotient would cancel.
inline F32 tanh(F32 x) {
  const F32 size = absolute(x), square = mul(x, x);
  F32 y = broadcast(-5.70498872745e-3f);
  y = fma(y, square, broadcast(2.06390887954e-2f));
  y = fma(y, square, broadcast(-5.37397155531e-2f));
  y = fma(y, square, broadcast(1.33314422036e-1f));
  y = fma(y, square, broadcast(-3.33332819422e-1f));
  const F32 near_zero = fma(mul(y, square), x, x);
  const F32 power = exp(mul(broadcast(2.0f), min(broadcast(10.0f), size)));  // beyond, the result is 1
  const F32 far = sub(broadcast(1.0f), div(broadcast(2.0f), add(power, broadcast(1.0f))));
  return choose_less(size, broadcast(0.625f), near_zero, with_sign_of(far, x));
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which is torch's gelu with approximate='tanh'.
inline F32 gelu_tanh(F32 x) {
  const F32 cubic = fma(mul(mul(x, x), broadcast(0.044715f)), x, x);
  const F32 half = mul(x, broadcast(0.5f));
  return fma(half, tanh(mul(cubic, broadcast(0.797884561f))), half);
}

// x / 2 (1 + erf(x / sqrt(2))), which is torch's gelu; erf as in Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most.
inline F32 gelu(F32 x) {
  const F32 one = broadcast(1.0f), size = mul(absolute(x), broadcast(0.707106781f));
  const F32 t = div(one, fma(size, broadcast(0.3275911f), one));
  F32 y = broadcast(1.061405429f);
  y = fma(y, t, broadcast(-1.453152027f));
  y = fma(y, t, broadcast(1.421413741f));
  y = fma(y, t, broadcast(-0.284496736f));
  y = fma(y, t, broadcast(0.254829592f));
  const F32 far = fnma(mul(y, t), exp(sub(zero(), mul(size, size))), one);
  const F32 half = mul(x, broadcast(0.5f));
  return fma(half, with_sign_of(far, x), half);
}

// x / (1 + e^-x)
inline F32 silu(F32 x) {
  const F32 negative = min(broadcast(88.0f), sub(zero(), x));
  return div(x, add(broadcast(1.0f), exp(negative)));
}

}  // namespace simd
}  // namespace slipstream
