#include "experts.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vector.hpp"

namespace slipstream {
namespace {

using namespace simd;

// The best of `count` scores that is not among the first `num_taken` of `taken`; of equals the lower number, and where
// all are nan the lowest.
int best_of(const float* scores, int count, const int32_t* taken, int num_taken) {
  int best = -1;
  for (int i = 0; i < count; ++i) {
    if (best >= 0 && !(scores[i] > scores[best])) continue;
    if (std::find(taken, taken + num_taken, i) == taken + num_taken) best = i;
  }
  return best;
}

float sum_of_powers(const float* scores, int count, float most) {
  F32 sums = zero();
  for (int i = 0; i < count; i += kLanes) {
    const int left = std::min(kLanes, count - i);
    const F32 power = exp(sub(load_some(scores + i, left), broadcast(most)));
    sums = add(sums, keep_lanes(power, 0, left, zero()));
  }
  return reduce_add(sums);
}

}  // namespace

void ExpertPairs::begin(const Routing& routing, int rows) {
  routing_ = routing;
  rows_ = rows;
  const auto pairs = static_cast<size_t>(num_pairs());
  experts_.reserve(pairs);
  weights_.reserve(pairs);
  places_.reserve(pairs);
}

void ExpertPairs::choose(const float* scores, int64_t stride, int first, int last) {
  const int k = routing_.top_k, count = routing_.num_experts;
  for (int row = first; row < last; ++row) {
    const float* of_row = scores + row * stride;
    int32_t* experts = experts_.data() + int64_t{row} * k;
    float* weights = weights_.data() + int64_t{row} * k;
    for (int i = 0; i < k; ++i) {
      experts[i] = best_of(of_row, count, experts, i);
      weights[i] = of_row[experts[i]];
    }
    const float most = weights[0];
    const float of_all = routing_.renormalise ? 0 : sum_of_powers(of_row, count, most);
    for (int i = 0; i < k; ++i) weights[i] = first_lane(exp(broadcast(weights[i] - most)));
    float total = 0;
    for (int i = 0; i < k; ++i) total += weights[i];
    for (int i = 0; i < k; ++i) weights[i] /= routing_.renormalise ? total : of_all;
  }
}

void ExpertPairs::take(const int64_t* experts, const float* weights) {
  for (int i = 0; i < num_pairs(); ++i) {
    const bool is_one = experts[i] >= 0 && experts[i] < routing_.num_experts;
    experts_.data()[i] = is_one ? static_cast<int32_t>(experts[i]) : -1;
    weights_.data()[i] = weights[i];
  }
}

void ExpertPairs::sort(int64_t* counts) {
  const auto num_own = static_cast<size_t>(routing_.num_own);
  starts_.assign(num_own + 1, 0);
  hit_.clear();
  const int32_t* experts = experts_.data();
  for (int i = 0; i < num_pairs(); ++i) {
    const int own = experts[i] - routing_.first_expert;
    if (counts != nullptr && experts[i] >= 0) ++counts[experts[i]];
    if (experts[i] >= 0 && own >= 0 && own < routing_.num_own) ++starts_[static_cast<size_t>(own) + 1];
  }
  for (size_t own = 0; own < num_own; ++own) {
    if (starts_[own + 1] != 0) hit_.push_back(static_cast<int>(own));
    starts_[own + 1] += starts_[own];
  }
  next_.assign(starts_.begin(), starts_.end());
  for (int i = 0; i < num_pairs(); ++i) {
    const int own = experts[i] - routing_.first_expert;
    const bool is_own = experts[i] >= 0 && own >= 0 && own < routing_.num_own;
    places_.data()[i] = is_own ? next_[static_cast<size_t>(own)]++ : -1;
  }
}

void ExpertPairs::gather(const std::byte* x, int64_t stride, int64_t bytes, std::byte* pairs, int first,
                         int last) const {
  const int k = routing_.top_k;
  for (int row = first; row < last; ++row) {
    for (int i = 0; i < k; ++i) {
      const int64_t place = places_.data()[int64_t{row} * k + i];
      if (place >= 0) std::memcpy(pairs + place * bytes, x + row * stride, static_cast<size_t>(bytes));
    }
  }
}

template <typename T>
void ExpertPairs::combine(const float* y, int dim, T* out, int64_t stride, bool add_to, int first, int last) const {
  const int k = routing_.top_k;
  for (int row = first; row < last; ++row) {
    const int32_t* places = places_.data() + int64_t{row} * k;
    const float* weights = weights_.data() + int64_t{row} * k;
    T* to = out + row * stride;
    for (int column = 0; column < dim; column += kLanes) {
      const int left = std::min(kLanes, dim - column);
      F32 sum = zero();
      for (int i = 0; i < k; ++i) {
        if (places[i] < 0) continue;
        sum = fma(broadcast(weights[i]), load_some(y + int64_t{places[i]} * dim + column, left), sum);
      }
      if (add_to) sum = add(load_some(to + column, left), sum);
      store_some(to + column, sum, left);
    }
  }
}

template void ExpertPairs::combine<float>(const float*, int, float*, int64_t, bool, int, int) const;
template void ExpertPairs::combine<Bf16>(const float*, int, Bf16*, int64_t, bool, int, int) const;

int ExpertProducts::begin(const ExpertPairs& pairs, const ExpertWeights& weights, const LinearCall& call,
                          const std::byte* then) {
  pairs_ = &pairs;
  weights_ = weights;
  call_ = call;
  then_ = then;
  ends_.clear();
  int num = 0;
  for (int i = 0; i < pairs.num_hit(); ++i) {
    PackedWeight weight;
    ends_.push_back(num += num_tiles(call_of(i, &weight)));
  }
  return num;
}

// Of the i-th expert that is hit.
LinearCall ExpertProducts::call_of(int i, PackedWeight* weight) const {
  const int expert = pairs_->hit(i), begin = pairs_->begin_of(expert);
  *weight = {weights_.first.shape, weights_.first.data + expert * weights_.stride};
  LinearCall call = call_;
  call.weight = weight;
  call.bias = weights_.bias == nullptr ? nullptr : weights_.bias + int64_t{expert} * weight->shape.outputs;
  call.rows = pairs_->count_of(expert);
  const int64_t x_bytes = call.type == Scalar::f32 ? 4 : 2;
  const int64_t y_bytes = is_wide(call.epilogue) ? 4 : x_bytes;
  call.x = static_cast<const std::byte*>(call.x) + begin * call.x_stride * x_bytes;
  call.y = static_cast<std::byte*>(call.y) + begin * call.y_stride * y_bytes;
  const bool is_last = i + 1 == pairs_->num_hit();
  call.after = is_last ? then_ : weights_.first.data + pairs_->hit(i + 1) * weights_.stride;
  return call;
}

void ExpertProducts::run_tile(int tile, std::byte* scratch) const {
  const auto at = std::upper_bound(ends_.begin(), ends_.end(), tile);
  PackedWeight weight;
  const LinearCall call = call_of(static_cast<int>(at - ends_.begin()), &weight);
  slipstream::run_tile(call, at == ends_.begin() ? tile : tile - *(at - 1), scratch);
}

}  // namespace slipstream
