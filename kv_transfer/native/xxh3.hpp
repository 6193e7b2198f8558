// XXH3-64 with a seed, for inputs of more than 240 bytes, fed in blocks of 1024 bytes that may be stored on the way.
//
// After the specification of XXH3 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md): eight 64-bit accumulators
// take in stripes of 64 bytes; after 16 stripes, a block, they are scrambled. The block from which the last byte
// comes is not scrambled, and ends with a stripe of the input's last 64 bytes.

#pragma once

// GCC 12's own headers are what it warns of here: an "undefined" vector is meant to be undefined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace xxh3 {

constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F, kPrime64_3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63, kPrime64_5 = 0x27D4EB2F165667C5;
constexpr uint64_t kAvalanche = 0x165667919E3779F9;

constexpr int kSecretBytes = 192;
constexpr int64_t kStripeBytes = 64, kBlockStripes = 16, kBlockBytes = kStripeBytes * kBlockStripes;
constexpr int64_t kMinBytes = 241;
constexpr int64_t kWriteAheadBytes = 2 * kBlockBytes;

inline constexpr uint8_t kSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

inline uint64_t read64(const uint8_t* bytes) {
    uint64_t value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

inline uint64_t fold_product(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// How the bytes that are looked at are stored: not at all, for somebody who reads them next, or past the caches.
enum class Store { kNone, kCached, kStreaming };

// The eight accumulators in vector registers, and a stripe on its way through them.
#if defined(__AVX512F__)
struct Lanes {
    __m512i acc;

    explicit Lanes(const uint64_t* from) : acc(_mm512_loadu_si512(from)) {}
    void save(uint64_t* to) const { _mm512_storeu_si512(to, acc); }

    template <Store kStore>
    void take(const uint8_t* src, uint8_t* dst, const uint8_t* secret) {
        const __m512i data = _mm512_loadu_si512(src);
        if (kStore == Store::kCached) _mm512_storeu_si512(dst, data);
        if (kStore == Store::kStreaming) _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), data);
        const __m512i key = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
        const __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
        const __m512i swapped = _mm512_shuffle_epi32(data, static_cast<_MM_PERM_ENUM>(_MM_SHUFFLE(1, 0, 3, 2)));
        acc = _mm512_add_epi64(acc, _mm512_add_epi64(product, swapped));
    }

    void scramble(const uint8_t* secret) {
        const __m512i prime = _mm512_set1_epi64(kPrime32_1);
        __m512i mixed = _mm512_xor_si512(acc, _mm512_srli_epi64(acc, 47));
        mixed = _mm512_xor_si512(mixed, _mm512_loadu_si512(secret));
        const __m512i high = _mm512_slli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime), 32);
        acc = _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), high);
    }
};
#else
struct Lanes {
    __m256i acc[2];

    explicit Lanes(const uint64_t* from) {
        for (int i = 0; i < 2; ++i) acc[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
    }
    void save(uint64_t* to) const {
        for (int i = 0; i < 2; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + i, acc[i]);
    }

    template <Store kStore>
    void take(const uint8_t* src, uint8_t* dst, const uint8_t* secret) {
        for (int i = 0; i < 2; ++i) {
            const __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src) + i);
            if (kStore == Store::kCached) _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst) + i, data);
            if (kStore == Store::kStreaming) _mm256_stream_si256(reinterpret_cast<__m256i*>(dst) + i, data);
            const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret) + i);
            const __m256i key = _mm256_xor_si256(data, word);
            const __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
            const __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
            acc[i] = _mm256_add_epi64(acc[i], _mm256_add_epi64(product, swapped));
        }
    }

    void scramble(const uint8_t* secret) {
        const __m256i prime = _mm256_set1_epi64x(kPrime32_1);
        for (int i = 0; i < 2; ++i) {
            __m256i mixed = _mm256_xor_si256(acc[i], _mm256_srli_epi64(acc[i], 47));
            mixed = _mm256_xor_si256(mixed, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret) + i));
            const __m256i high = _mm256_slli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime), 32);
            acc[i] = _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), high);
        }
    }
};
#endif

class Digest {
  public:
    explicit Digest(uint64_t seed) {
        for (int i = 0; i < kSecretBytes; i += 16) {
            const uint64_t low = read64(kSecret + i) + seed, high = read64(kSecret + i + 8) - seed;
            std::memcpy(secret_ + i, &low, 8);
            std::memcpy(secret_ + i + 8, &high, 8);
        }
    }

    // Takes in a whole block that is not the input's last. `ahead` is what will be wanted before long.
    template <Store kStore>
    void take_block(const uint8_t* src, uint8_t* dst, const uint8_t* ahead) {
        Lanes lanes(acc_);
        for (int64_t i = 0; i < kBlockStripes; ++i) {
            _mm_prefetch(reinterpret_cast<const char*>(ahead + i * kStripeBytes), _MM_HINT_T0);
            const int64_t at = i * kStripeBytes;
            // Lines that somebody else has read last take as long to get for writing as others for reading.
            if (kStore == Store::kCached) __builtin_prefetch(dst + at + kWriteAheadBytes, 1);
            lanes.take<kStore>(src + at, kStore == Store::kNone ? dst : dst + at, secret_ + 8 * i);
        }
        lanes.scramble(secret_ + kSecretBytes - kStripeBytes);
        lanes.save(acc_);
    }

    // `tail` is the input's last 1 to 1024 bytes, with the 64 bytes of the input before them in front of it.
    uint64_t finish(const uint8_t* tail, int64_t tail_bytes, uint64_t num_bytes) {
        Lanes lanes(acc_);
        for (int64_t i = 0; i < (tail_bytes - 1) / kStripeBytes; ++i) {
            lanes.take<Store::kNone>(tail + i * kStripeBytes, nullptr, secret_ + 8 * i);
        }
        lanes.take<Store::kNone>(tail + tail_bytes - kStripeBytes, nullptr, secret_ + kSecretBytes - kStripeBytes - 7);
        lanes.save(acc_);
        uint64_t hash = num_bytes * kPrime64_1;
        for (int i = 0; i < 4; ++i) {
            hash += fold_product(acc_[2 * i] ^ read64(secret_ + 11 + 16 * i),
                                 acc_[2 * i + 1] ^ read64(secret_ + 11 + 16 * i + 8));
        }
        hash ^= hash >> 37;
        hash *= kAvalanche;
        return hash ^ (hash >> 32);
    }

  private:
    // From the beginning of a line on: a block waits until the sums of the last one are stored, which is slow across two pages.
    alignas(kStripeBytes) uint64_t acc_[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                              kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
    alignas(kStripeBytes) uint8_t secret_[kSecretBytes];
};

}  // namespace xxh3
