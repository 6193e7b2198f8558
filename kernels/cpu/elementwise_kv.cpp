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

template <class T>
class TokenWriter {
 public:
  explicit TokenWriter(const KvWrite<T>& write) : write_(write), head_dim_(write.kv.head_dim) {}

  void run(int64_t token) const {
    const int num_kv_heads = write_.kv.num_kv_heads;
    T* heads = write_.qkv + token * (write_.num_heads + 2 * num_kv_heads) * head_dim_;
    for (int head = 0; head < write_.num_heads; ++head) {
      rotate(heads + head * head_dim_, token, head, heads + head * head_dim_);
    }
    const T* keys = heads + write_.num_heads * head_dim_;
    const T* values = keys + num_kv_heads * head_dim_;
    for (int head = 0; head < num_kv_heads; ++head) {
      alignas(64) T key[kMaxHeadDim];
      rotate(keys + head * head_dim_, token, write_.num_heads + head, key);
      store_key_value(key, values + head * head_dim_, write_.slots[token], head);
    }
  }

 private:
  // [ a | b ] -> [ a cos - b sin | b cos + a sin ], after the norm of that head if there is one.
  void rotate(const T* x, int64_t token, int head, T* out) const {
    const int half = head_dim_ / 2;
    const float* cosines = write_.cosines + token * half;
    const float* sines = write_.sines + token * half;
    const bool has_norm = write_.qk_norm != nullptr;
    const T* weight = has_norm ? write_.qk_norm + head * head_dim_ : x;
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

  void store_key_value(const T* key, const T* value, int32_t slot, int head) const {
    const int page_tokens = write_.kv.page_tokens;
    const int page = slot / page_tokens;
    const size_t run =
        static_cast<size_t>(page) * static_cast<size_t>(write_.kv.num_kv_heads) + static_cast<size_t>(head);
    std::byte* at = static_cast<std::byte*>(write_.kv_layer) + run * write_.kv.head_bytes(sizeof(T));
    const int offset = slot - page * page_tokens;
    switch (write_.kv.format) {
      case KvFormat::model: {
        T* keys = reinterpret_cast<T*>(at);
        std::copy_n(key, head_dim_, keys + offset * head_dim_);
        std::copy_n(value, head_dim_, keys + (page_tokens + offset) * head_dim_);
        return;
      }
      case KvFormat::int8: return store_codes_of<Int8>(key, value, at, offset);
      case KvFormat::fp8: return store_codes_of<Fp8>(key, value, at, offset);
    }
  }

  template <class Code>
  void store_codes_of(const T* key, const T* value, std::byte* at, int offset) const {
    const int page_tokens = write_.kv.page_tokens;
    Code* keys = reinterpret_cast<Code*>(at);
    Code* values = keys + page_tokens * head_dim_;
    auto* scales = reinterpret_cast<float*>(values + page_tokens * head_dim_);
    scales[offset] = quantize(key, head_dim_, keys + offset * head_dim_);
    scales[page_tokens + offset] = quantize(value, head_dim_, values + offset * head_dim_);
  }

  const KvWrite<T>& write_;
  int head_dim_;
};

}  // namespace

template <typename T>
void write_keys_values(const KvWrite<T>& write, int first, int last) {
  const TokenWriter<T> writer(write);
  for (int token = first; token < last; ++token) writer.run(token);
}

template void write_keys_values<float>(const KvWrite<float>&, int, int);
template void write_keys_values<Bf16>(const KvWrite<Bf16>&, int, int);

}  // namespace slipstream
