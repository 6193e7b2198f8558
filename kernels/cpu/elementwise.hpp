// What a layer does between its products: norms, rotary embedding with the writing of keys and values.
//
// T is the model's dtype, float or Bf16. Every function works on rows first .. last (last excluded) of a step, and rows
// do not depend on each other: a phase is cut into tiles of as many rows as one likes. None needs scratch memory.
#pragma once

#include <cstdint>

#include "attention.hpp"
#include "vector.hpp"

namespace slipstream {

// out = x / sqrt(mean(x^2) + eps) * weight. x [rows, dim] and weight [dim] float32, out [rows, dim].
template <typename T>
void rms_norm(const float* x, const float* weight, T* out, int dim, float eps, int first, int last);

// Like rms_norm, for some rows of x: out row i is the norm of x row rows[i].
template <typename T>
void rms_norm_gathered(const float* x, const int32_t* rows, const float* weight, T* out, int dim, float eps, int first,
                       int last);

// Like rms_norm, added to out [rows, dim] float32.
void add_rms_norm(const float* x, const float* weight, float* out, int dim, float eps, int first, int last);

// cosines and sines [tokens, half_dim] of the angles positions[i] * inv_freq[j], taken in float32, times `scale`.
void rotary_table(const int32_t* positions, const float* inv_freq, int half_dim, float scale, float* cosines,
                  float* sines, int first, int last);

// The step's queries, keys and values on their way into the pages.
template <typename T>
struct KvWrite {
  KvShape kv;  // keys and values of one width, head_dim
  int num_heads;
  T* qkv;                // [tokens, (heads + 2 kv_heads) * head_dim]; queries are rotated in place
  const float* cosines;  // [tokens, head_dim / 2], rows of the step
  const float* sines;    // [tokens, head_dim / 2]
  const float* qk_norm;  // [heads + kv_heads, head_dim] weights of the norm of each head, or nullptr
  float eps;             // of that norm
  const int32_t* slots;  // [tokens] page * page_tokens + offset
  void* kv_layer;        // the layer's pages
};

// Norms (if the model does) and rotates queries and keys, stores queries back, and keys and values in their slots.
template <typename T>
void write_keys_values(const KvWrite<T>& write, int first, int last);

// Keys and values that are stored as they are. Strides count elements.
template <typename T>
struct KvRows {
  KvShape kv;
  const T* keys;  // [tokens, kv_heads, key_dim]
  int64_t key_stride;
  int64_t key_head_stride;
  const T* values;  // [tokens, kv_heads, value_dim]
  int64_t value_stride;
  int64_t value_head_stride;
  const int32_t* slots;  // as in KvWrite
  void* kv_layer;
};

template <typename T>
void store_keys_values(const KvRows<T>& rows, int first, int last);

// Rows of a rank's share of the embedding, ids first_id .. first_id + share, times `scale`; zeros for ids of other
// ranks. table [share, dim], out [tokens, dim] float32.
template <typename T>
void embed(const T* table, const int32_t* token_ids, int32_t first_id, int32_t share, float scale, float* out, int dim,
           int first, int last);

// The id of the largest of `count` logits of each row, the lowest of equals. sound[row] is 1 if the largest is a finite
// number and none is nan; otherwise 0, and so is the id. logits [rows, stride], count >= 1.
void argmax(const float* logits, int64_t stride, int count, int32_t* token_ids, uint8_t* sound, int first, int last);

}  // namespace slipstream
