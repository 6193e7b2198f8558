// Queries, keys and values between the projection that made them and the pages.

#include <algorithm>

#include "elementwise.hpp"
#include "vector_codes.hpp"

namespace slipstream {
namespace {

using namespace simd;

constexpr float kSmallestMagnitude = 1e-30f;  // what is smaller becomes zero; its scale is still a normal number

template <class Code>
constexpr float kLargestCode = 0;
template <>
constexpr float kLargestCode<Int8> = 127.0f;
template <>
constexpr float kLargestCode<Fp8> = 448.0f;

// Stores codes of `x` [head_dim]; returns their scale, nan if there is a number that is not finite.
template <class T, class Code>
float quantize(const T* x, int head_dim, Code* codes) {
  F32 most = broadcast(kSmallestMagnitude);
  F32 soundness = zero();
  for (int i = 0; i < head_dim; i += kLanes) {
    const F32 part = load_some(x + i, std::min(kLanes, head_dim - i));
    most = max(most, absolute(part));
    soundness = fma(part, zero(), soundness);
  }
  const float largest = kLargestCode<Code>;
  const float scale = reduce_max(most) / largest + reduce_add(soundness);
  for (int i = 0; i < head_dim; i += kLanes) {
    const int left = std::min(kLanes, head_dim - i);
    const F32 code = div(load_some(x + i, left), broadcast(scale));
    store_codes(codes + i, max(min(code, broadcast(largest)), broadcast(-largest)), left);
  }
  return scale;
}

// Puts a token's key and value of one head into the run of that head in its page.
template <class T>
class PageWriter {
 public:
  explicit PageWriter(const KvShape& kv) : kv_(kv), head_bytes_(kv.head_bytes(sizeof(T))) {}

  // Calls `store(head, run)` for each KV head, `run` being the head's in the page of `slot`.
  template <class Store>
  void for_each_head(void* kv_layer, int32_t slot, Store store) const {
    std::byte* unit = static_cast<std::byte*>(kv_layer) + slot / kv_.page_tokens * kv_.page_stride;
    for (int first = 0; first < kv_.num_kv_heads; first += kv_.unit_heads, unit += kv_.unit_stride) {
      for (int i = 0; i < kv_.unit_heads; ++i) store(first + i, unit + i * head_bytes_);
    }
  }

  void store(const T* key, const T* value, std::byte* run, int offset) const {
    switch (kv_.format) {
      case KvFormat::model: {
        T* keys = reinterpret_cast<T*>(run);
        std::copy_n(key, kv_.key_dim, keys + offset * kv_.key_dim);
        std::copy_n(value, kv_.value_dim, keys + kv_.page_tokens * kv_.key_dim + offset * kv_.value_dim);
        return;
      }
      case KvFormat::int8: return store_codes_of<Int8>(key, value, run, offset);
      case KvFormat::fp8: return store_codes_of<Fp8>(key, value, run, offset);
    }
  }

 private:
  template <class Code>
  void store_codes_of(const T* key, const T* value, std::byte* run, int offset) const {
    Code* keys = reinterpret_cast<Code*>(run);
    Code* values = keys + kv_.page_tokens * kv_.key_dim;
    auto* scales = reinterpret_cast<float*>(values + kv_.page_tokens * kv_.value_dim);
    scales[offset] = quantize(key, kv_.key_dim, keys + offset * kv_.key_dim);
    scales[kv_.page_tokens + offset] = quantize(value, kv_.value_dim, values + offset * kv_.value_dim);
  }

  const KvShape& kv_;
  int64_t head_bytes_;
};

template <class T>
class TokenWriter {
 public:
  explicit TokenWriter(const KvWrite<T>& write) : write_(write), pages_(write.kv), head_dim_(write.kv.key_dim) {}

  void run(int64_t token) const {
    const int num_kv_heads = write_.kv.num_kv_heads;
    T* heads = write_.qkv + token * (write_.num_heads + 2 * num_kv_heads) * head_dim_;
    for (int head = 0; head < write_.num_heads; ++head) {
      rotate(heads + head * head_dim_, token, head, heads + head * head_dim_);
    }
    const T* keys = heads + write_.num_heads * head_dim_;
    const T* values = keys + num_kv_heads * head_dim_;
    const int32_t slot = write_.slots[token];
    pages_.for_each_head(write_.kv_layer, slot, [&](int head, std::byte* run) {
      alignas(64) T key[kMaxHeadDim];
      rotate(keys + head * head_dim_, token, write_.num_heads + head, key);
      pages_.store(key, values + head * head_dim_, run, slot % write_.kv.page_tokens);
    });
  }

 private:
  // [ a | b ] -> [ a cos - b sin | b cos + a sin ], after the norm of that head if there is one.
  void rotate(const T* x, int64_t token, int head, T* out) const {
    const int half = head_dim_ / 2;
    const float* cosines = write_.cosines + token * half;
    const float* sines = write_.sines + token * half;
    const bool has_norm = write_.qk_norm != nullptr;
    const float* weight = has_norm ? write_.qk_norm + head * head_dim_ : nullptr;
    const F32 factor = broadcast(has_norm ? inverse_rms(x) : 1.0f);
    for (int i = 0; i < half; i += kLanes) {
      const int left = std::min(kLanes, half - i);
      F32 a = load_some(x + i, left);
      F32 b = load_some(x + half + i, left);
      if (has_norm) {
        a = mul(mul(a, factor), load_some(weight + i, left));
        b = mul(mul(b, factor), load_some(weight + half + i, left));
      }
      const F32 cosine = load_some(cosines + i, left);
      const F32 sine = load_some(sines + i, left);
      store_some(out + i, fnma(b, sine, mul(a, cosine)), left);
      store_some(out + half + i, fma(a, sine, mul(b, cosine)), left);
    }
  }

  float inverse_rms(const T* x) const {
    F32 squares = zero();
    for (int i = 0; i < head_dim_; i += kLanes) {
      const F32 part = load_some(x + i, std::min(kLanes, head_dim_ - i));
      squares = fma(part, part, squares);
    }
    return 1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(head_dim_) + write_.eps);
  }

  const KvWrite<T>& write_;
  PageWriter<T> pages_;
  int head_dim_;
};

}  // namespace

template <typename T>
void write_keys_values(const KvWrite<T>& write, int first, int last) {
  const TokenWriter<T> writer(write);
  for (int token = first; token < last; ++token) writer.run(token);
}

template <typename T>
void store_keys_values(const KvRows<T>& rows, int first, int last) {
  const PageWriter<T> pages(rows.kv);
  for (int64_t token = first; token < last; ++token) {
    const T* keys = rows.keys + token * rows.key_stride;
    const T* values = rows.values + token * rows.value_stride;
    const int32_t slot = rows.slots[token];
    pages.for_each_head(rows.kv_layer, slot, [&](int head, std::byte* run) {
      pages.store(keys + head * rows.key_head_stride, values + head * rows.value_head_stride, run,
                  slot % rows.kv.page_tokens);
    });
  }
}

template void write_keys_values<float>(const KvWrite<float>&, int, int);
template void write_keys_values<Bf16>(const KvWrite<Bf16>&, int, int);
template void store_keys_values<float>(const KvRows<float>&, int, int);
template void store_keys_values<Bf16>(const KvRows<Bf16>&, int, int);

}  // namespace slipstream
