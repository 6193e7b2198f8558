// What lies between the products, behind the C interface, for tests and benchmarks: all rows at once, on one thread.

#include "elementwise.hpp"
#include "export.hpp"
#include "linear.hpp"

using namespace slipstream;

namespace {

// Calls `f` with a value of the model's dtype.
template <class Function>
void with_type(int32_t type, Function f) {
  if (static_cast<Scalar>(type) == Scalar::f32) return f(float{});
  f(Bf16{});
}

template <class T>
const T* as(const void* memory, T) {
  return static_cast<const T*>(memory);
}
template <class T>
T* as(void* memory, T) {
  return static_cast<T*>(memory);
}

}  // namespace

SLIPSTREAM_API void slipstream_rms_norm(int32_t type, const float* x, const int32_t* rows, const float* weight,
                                        void* out, int32_t num_rows, int32_t dim, float eps) {
  with_type(type, [&](auto t) {
    if (rows == nullptr) return rms_norm(x, weight, as(out, t), dim, eps, 0, num_rows);
    rms_norm_gathered(x, rows, weight, as(out, t), dim, eps, 0, num_rows);
  });
}

SLIPSTREAM_API void slipstream_add_rms_norm(const float* x, const float* weight, float* out, int32_t num_rows,
                                            int32_t dim, float eps) {
  add_rms_norm(x, weight, out, dim, eps, 0, num_rows);
}

SLIPSTREAM_API void slipstream_rotary_table(const int32_t* positions, const float* inv_freq, int32_t half_dim,
                                            float scale, float* cosines, float* sines, int32_t num_tokens) {
  rotary_table(positions, inv_freq, half_dim, scale, cosines, sines, 0, num_tokens);
}

SLIPSTREAM_API void slipstream_write_keys_values(int32_t type, const KvShape* kv, int32_t num_heads, void* qkv,
                                                 const float* cosines, const float* sines, const float* qk_norm,
                                                 float eps, const int32_t* slots, void* kv_layer, int32_t num_tokens) {
  with_type(type, [&](auto t) {
    const KvWrite<decltype(t)> write{*kv, num_heads, as(qkv, t), cosines, sines, qk_norm, eps, slots, kv_layer};
    write_keys_values(write, 0, num_tokens);
  });
}

SLIPSTREAM_API void slipstream_embed(int32_t type, const void* table, const int32_t* token_ids, int32_t first_id,
                                     int32_t share, float scale, float* out, int32_t num_tokens, int32_t dim) {
  with_type(type, [&](auto t) { embed(as(table, t), token_ids, first_id, share, scale, out, dim, 0, num_tokens); });
}

SLIPSTREAM_API void slipstream_argmax(const float* logits, int64_t stride, int32_t count, int32_t* token_ids,
                                      uint8_t* sound, int32_t num_rows) {
  argmax(logits, stride, count, token_ids, sound, 0, num_rows);
}
