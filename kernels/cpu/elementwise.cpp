#include "elementwise.hpp"

#include <algorithm>

namespace slipstream {
namespace {

using namespace simd;

// 1 / sqrt(mean(x^2) + eps)
template <class T>
float inverse_rms(const T* x, int dim, float eps) {
  F32 squares[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const F32 part = load(x + i + v * kLanes);
      squares[v] = fma(part, part, squares[v]);
    }
  }
  for (; i < dim; i += kLanes) {
    const F32 part = load_some(x + i, std::min(kLanes, dim - i));
    squares[0] = fma(part, part, squares[0]);
  }
  const float sum = reduce_add(add(add(squares[0], squares[1]), add(squares[2], squares[3])));
  return 1.0f / std::sqrt(sum / static_cast<float>(dim) + eps);
}

template <class T>
void norm_row(const float* x, const float* weight, T* out, int dim, float eps) {
  const F32 factor = broadcast(inverse_rms(x, dim, eps));
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) store(out + i, mul(mul(load(x + i), factor), load(weight + i)));
  if (i < dim) {
    const int left = dim - i;
    store_some(out + i, mul(mul(load_some(x + i, left), factor), load_some(weight + i, left)), left);
  }
}

void add_norm_row(const float* x, const float* weight, float* out, int dim, float eps) {
  const F32 factor = broadcast(inverse_rms(x, dim, eps));
  for (int i = 0; i < dim; i += kLanes) {
    const int left = std::min(kLanes, dim - i);
    const F32 normed = mul(mul(load_some(x + i, left), factor), load_some(weight + i, left));
    store_some(out + i, add(load_some(out + i, left), normed), left);
  }
}

struct Maximum {
  float most;
  bool has_nan;  // then `most` is any number
};

Maximum maximum(const float* x, int count) {
  const F32 lowest = broadcast(-INFINITY);
  F32 most[4] = {lowest, lowest, lowest, lowest};
  bool has_nan = false;
  int i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const F32 part = load(x + i + v * kLanes);
      has_nan |= any_nan(part);
      most[v] = max(most[v], part);
    }
  }
  for (; i < count; i += kLanes) {
    const int left = std::min(kLanes, count - i);
    const F32 part = keep_lanes(load_some(x + i, left), 0, left, lowest);
    has_nan |= any_nan(part);
    most[0] = max(most[0], part);
  }
  return {reduce_max(max(max(most[0], most[1]), max(most[2], most[3]))), has_nan};
}

}  // namespace

template <typename T>
void rms_norm(const float* x, const float* weight, T* out, int dim, float eps, int first, int last) {
  for (int64_t row = first; row < last; ++row) norm_row(x + row * dim, weight, out + row * dim, dim, eps);
}

template <typename T>
void rms_norm_gathered(const float* x, const int32_t* rows, const float* weight, T* out, int dim, float eps, int first,
                       int last) {
  for (int64_t row = first; row < last; ++row) {
    norm_row(x + static_cast<int64_t>(rows[row]) * dim, weight, out + row * dim, dim, eps);
  }
}

void add_rms_norm(const float* x, const float* weight, float* out, int dim, float eps, int first, int last) {
  for (int64_t row = first; row < last; ++row) add_norm_row(x + row * dim, weight, out + row * dim, dim, eps);
}

void rotary_table(const int32_t* positions, const float* inv_freq, int half_dim, float scale, float* cosines,
                  float* sines, int first, int last) {
  for (int64_t token = first; token < last; ++token) {
    const auto position = static_cast<float>(positions[token]);
    for (int i = 0; i < half_dim; ++i) {
      const float angle = position * inv_freq[i];
      cosines[token * half_dim + i] = std::cos(angle) * scale;
      sines[token * half_dim + i] = std::sin(angle) * scale;
    }
  }
}

template <typename T>
void embed(const T* table, const int32_t* token_ids, int32_t first_id, int32_t share, float scale, float* out, int dim,
           int first, int last) {
  for (int64_t token = first; token < last; ++token) {
    const int64_t id = int64_t{token_ids[token]} - first_id;
    float* to = out + token * dim;
    if (id < 0 || id >= share) {
      std::fill_n(to, dim, 0.0f);
      continue;
    }
    const T* from = table + id * dim;
    for (int i = 0; i < dim; i += kLanes) {
      const int left = std::min(kLanes, dim - i);
      store_some(to + i, mul(load_some(from + i, left), broadcast(scale)), left);
    }
  }
}

void argmax(const float* logits, int64_t stride, int count, int32_t* token_ids, uint8_t* sound, int first, int last) {
  for (int row = first; row < last; ++row) {
    const float* scores = logits + row * stride;
    const auto [most, has_nan] = maximum(scores, count);
    sound[row] = !has_nan && std::isfinite(most);
    token_ids[row] = sound[row] ? static_cast<int32_t>(std::find(scores, scores + count, most) - scores) : 0;
  }
}

template void rms_norm<float>(const float*, const float*, float*, int, float, int, int);
template void rms_norm<Bf16>(const float*, const float*, Bf16*, int, float, int, int);
template void rms_norm_gathered<float>(const float*, const int32_t*, const float*, float*, int, float, int, int);
template void rms_norm_gathered<Bf16>(const float*, const int32_t*, const float*, Bf16*, int, float, int, int);
template void embed<float>(const float*, const int32_t*, int32_t, int32_t, float, float*, int, int, int);
template void embed<Bf16>(const Bf16*, const int32_t*, int32_t, int32_t, float, float*, int, int, int);

}  // namespace slipstream
