// Norms, rotary embedding and the best of scores on rows of plain tensors, one call each, for models that are computed
// op by op (see `native_rows.py`). Behind the C interface. Strides count elements; rows do not depend on each other.
#include <algorithm>
#include <cmath>

#include "elementwise.hpp"
#include "export.hpp"
#include "linear.hpp"
#include "team.hpp"
#include "vector.hpp"

namespace slipstream {
namespace {

using namespace simd;

constexpr int64_t kNumbersOfTile = 16384;  // a few microseconds of work: less is not worth a helper's waking

// Calls `run(first, last)` for all of `count` rows of `width` numbers, on several threads where that pays.
template <class Run>
class RowsWork final : public Work {
 public:
  RowsWork(const Run& run, int count, int rows_of_tile) : run_(run), count_(count), rows_of_tile_(rows_of_tile) {}

  int begin_phase(int phase, int) override {
    return phase > 0 ? kWorkEnds : (count_ + rows_of_tile_ - 1) / rows_of_tile_;
  }

  void run_tile(int, int tile, int) override {
    run_(tile * rows_of_tile_, std::min((tile + 1) * rows_of_tile_, count_));
  }

 private:
  const Run& run_;
  int count_;
  int rows_of_tile_;
};

template <class Run>
void for_rows(int count, int64_t width, const Run& run) {
  const int rows_of_tile = static_cast<int>(std::max<int64_t>(1, kNumbersOfTile / std::max<int64_t>(1, width)));
  if (count <= rows_of_tile) return run(0, count);
  RowsWork<Run> work(run, count, rows_of_tile);
  run_together(work);
}

template <class T>
void norm_row(const T* x, const float* weight, T* out, int dim, float eps) {
  F32 squares = zero();
  for (int i = 0; i < dim; i += kLanes) {
    const F32 part = load_some(x + i, std::min(kLanes, dim - i));
    squares = fma(part, part, squares);
  }
  const F32 factor = broadcast(1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(dim) + eps));
  for (int i = 0; i < dim; i += kLanes) {
    const int left = std::min(kLanes, dim - i);
    F32 normed = mul(load_some(x + i, left), factor);
    if (weight != nullptr) normed = mul(normed, load_some(weight + i, left));
    store_some(out + i, normed, left);
  }
}

template <class T>
void layer_norm_row(const T* x, const float* weight, const float* bias, T* out, int dim, float eps) {
  F32 sum = zero();
  for (int i = 0; i < dim; i += kLanes) sum = add(sum, load_some(x + i, std::min(kLanes, dim - i)));
  const float mean = reduce_add(sum) / static_cast<float>(dim);
  float squares = 0;  // of the last numbers, which fill no register
  F32 wide_squares = zero();
  for (int i = 0; i < dim; i += kLanes) {
    const int left = dim - i;
    if (left < kLanes) {
      for (int j = i; j < dim; ++j) {
        const float part = to_float(x[j]) - mean;
        squares += part * part;
      }
    } else {
      const F32 part = sub(load(x + i), broadcast(mean));
      wide_squares = fma(part, part, wide_squares);
    }
  }
  squares += reduce_add(wide_squares);
  const F32 factor = broadcast(1.0f / std::sqrt(squares / static_cast<float>(dim) + eps));
  for (int i = 0; i < dim; i += kLanes) {
    const int left = std::min(kLanes, dim - i);
    F32 normed = mul(sub(load_some(x + i, left), broadcast(mean)), factor);
    if (weight != nullptr) normed = mul(normed, load_some(weight + i, left));
    if (bias != nullptr) normed = add(normed, load_some(bias + i, left));
    store_some(out + i, normed, left);
  }
}

// x [half | half] rotated by tables [half | half]
template <class T>
void rotate_row(T* x, const T* cosines, const T* sines, int half) {
  for (int i = 0; i < half; i += kLanes) {
    const int left = std::min(kLanes, half - i);
    const F32 low = load_some(x + i, left), high = load_some(x + half + i, left);
    const F32 new_low = fnma(high, load_some(sines + i, left), mul(low, load_some(cosines + i, left)));
    const F32 new_high = fma(low, load_some(sines + half + i, left), mul(high, load_some(cosines + half + i, left)));
    store_some(x + i, new_low, left);
    store_some(x + half + i, new_high, left);
  }
}

template <class T>
void norm_rows(const void* x, int64_t x_stride, const float* weight, float eps, void* out, int64_t out_stride, int rows,
               int dim) {
  for_rows(rows, dim, [&](int first, int last) {
    for (int64_t row = first; row < last; ++row) {
      norm_row(static_cast<const T*>(x) + row * x_stride, weight, static_cast<T*>(out) + row * out_stride, dim, eps);
    }
  });
}

template <class T>
void layer_norm_rows(const void* x, int64_t x_stride, const float* weight, const float* bias, float eps, void* out,
                     int64_t out_stride, int rows, int dim) {
  for_rows(rows, dim, [&](int first, int last) {
    for (int64_t row = first; row < last; ++row) {
      layer_norm_row(static_cast<const T*>(x) + row * x_stride, weight, bias, static_cast<T*>(out) + row * out_stride,
                     dim, eps);
    }
  });
}

template <class T>
void rotate_rows(void* x, int64_t token_stride, int64_t head_stride, int tokens, int heads, const void* cosines,
                 const void* sines, int64_t table_stride, int dim) {
  for_rows(tokens, int64_t{heads} * dim, [&](int first, int last) {
    for (int64_t token = first; token < last; ++token) {
      const T* cosine = static_cast<const T*>(cosines) + token * table_stride;
      const T* sine = static_cast<const T*>(sines) + token * table_stride;
      T* head = static_cast<T*>(x) + token * token_stride;
      for (int h = 0; h < heads; ++h, head += head_stride) rotate_row(head, cosine, sine, dim / 2);
    }
  });
}

}  // namespace
}  // namespace slipstream

using slipstream::Bf16;
using slipstream::Scalar;

// out = x / sqrt(mean(x^2) + eps) * weight. x [rows, dim] and out of `type`, f32 or bf16; weight [dim] float32 or null.
SLIPSTREAM_API void slipstream_norm_rows(int32_t type, const void* x, int64_t x_stride, const float* weight, float eps,
                                         void* out, int64_t out_stride, int32_t rows, int32_t dim) {
  const auto norm =
      static_cast<Scalar>(type) == Scalar::f32 ? slipstream::norm_rows<float> : slipstream::norm_rows<Bf16>;
  norm(x, x_stride, weight, eps, out, out_stride, rows, dim);
}

// out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias, of which weight and bias may be null.
SLIPSTREAM_API void slipstream_layer_norm_rows(int32_t type, const void* x, int64_t x_stride, const float* weight,
                                               const float* bias, float eps, void* out, int64_t out_stride,
                                               int32_t rows, int32_t dim) {
  const auto norm =
      static_cast<Scalar>(type) == Scalar::f32 ? slipstream::layer_norm_rows<float> : slipstream::layer_norm_rows<Bf16>;
  norm(x, x_stride, weight, bias, eps, out, out_stride, rows, dim);
}

// Rotates in place the first `dim` numbers of each head of x [tokens, heads, ..]: the first half of them with the second,
// by tables [tokens, dim], all of `type`.
SLIPSTREAM_API void slipstream_rotate_rows(int32_t type, void* x, int64_t token_stride, int64_t head_stride,
                                           int32_t tokens, int32_t heads, const void* cosines, const void* sines,
                                           int64_t table_stride, int32_t dim) {
  const auto rotate =
      static_cast<Scalar>(type) == Scalar::f32 ? slipstream::rotate_rows<float> : slipstream::rotate_rows<Bf16>;
  rotate(x, token_stride, head_stride, tokens, heads, cosines, sines, table_stride, dim);
}

// The best of `count` scores of each row of scores [rows, stride] float32 (see `argmax`).
SLIPSTREAM_API void slipstream_best_of_rows(const float* scores, int64_t stride, int32_t count, int32_t rows,
                                            int32_t* token_ids, uint8_t* sound) {
  slipstream::for_rows(rows, count, [&](int first, int last) {
    slipstream::argmax(scores, stride, count, token_ids, sound, first, last);
  });
}
