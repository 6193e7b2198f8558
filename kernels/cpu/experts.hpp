// Mixtures of experts: which experts each row chooses, and products of rows with the experts that they have chosen.
//
//     scores [rows, experts] -> choose -> sort:  rows by expert, own experts only     row 0 | row 3 | row 1 | row 3 ...
//                                                                                     expert 0      | expert 2 ...
//     x -> gather -> [pairs, in] -> product of each expert's rows with its weight -> [pairs, out] -> weighted sum by row
//
// A *pair* is a row and an expert that it has chosen. Pairs of one expert lie one behind the other, so an expert's weight
// is read once, whatever the number of its rows, and one that no row has chosen is not read. A row's sum is taken in the
// order of its choices, the best first, so a result does not depend on the rows beside it.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.hpp"
#include "linear.hpp"

namespace slipstream {

// How rows choose; part of the C interface. A rank holds a run of the experts, and computes what these add to the rows.
struct Routing {
  int32_t num_experts;   // that there are scores of
  int32_t first_expert;  // of the rank's own
  int32_t num_own;
  int32_t top_k;
  int32_t renormalise;  // the weights of a row's choices sum to one; otherwise they are shares of all experts
};

// The choices of the rows of one step in one layer. Rows that choose can be dealt out to threads; `sort` is serial.
class ExpertPairs {
 public:
  void begin(const Routing& routing, int rows);

  // Rows first .. last (excluded) choose the top_k experts with the highest scores, of equals the lower number. Weights
  // are a softmax of the scores. scores [rows, stride].
  void choose(const float* scores, int64_t stride, int first, int last);

  // Takes choices that were made elsewhere, [rows, top_k]. An expert outside 0 .. num_experts - 1 is none.
  void take(const int64_t* experts, const float* weights);

  // Puts pairs of own experts in order; adds the number of rows of each of all experts to `counts`, if there.
  void sort(int64_t* counts);

  const Routing& routing() const { return routing_; }
  int num_rows() const { return rows_; }
  int num_pairs() const { return rows_ * routing_.top_k; }  // room for these; there are as many if all experts are own
  int hit(int i) const { return hit_[static_cast<size_t>(i)]; }
  int num_hit() const { return static_cast<int>(hit_.size()); }  // own experts that rows have chosen, counted from 0
  int begin_of(int expert) const { return starts_[static_cast<size_t>(expert)]; }
  int count_of(int expert) const { return begin_of(expert + 1) - begin_of(expert); }

  // Copies rows first .. last of x, of `bytes` each and `stride` bytes apart, to all places of their pairs.
  void gather(const std::byte* x, int64_t stride, int64_t bytes, std::byte* pairs, int first, int last) const;

  // out[row] = (or +=, if `add_to`) the sum over its pairs of weight * y[pair]; y [pairs, dim], out [rows, stride].
  template <typename T>
  void combine(const float* y, int dim, T* out, int64_t stride, bool add_to, int first, int last) const;

 private:
  Routing routing_ = {};
  int rows_ = 0;
  Buffer<int32_t> experts_;  // [rows, top_k]; -1: none
  Buffer<float> weights_;    // [rows, top_k]
  Buffer<int32_t> places_;   // [rows, top_k] where the pair lies; -1: not here
  std::vector<int> starts_;  // [num_own + 1]
  std::vector<int> next_;
  std::vector<int> hit_;
};

// Weights of the own experts, alike and one behind the other.
struct ExpertWeights {
  PackedWeight first;
  int64_t stride;     // bytes from one to the next
  const float* bias;  // [own experts, outputs], or none
};

// Products of all pairs with the weights of their experts, cut into tiles.
class ExpertProducts {
 public:
  // `call`: x and y are [pairs, ..]; weight, bias and rows are those of each expert. `then`: the weights that will be
  // multiplied next, if known.
  int begin(const ExpertPairs& pairs, const ExpertWeights& weights, const LinearCall& call, const std::byte* then);

  void run_tile(int tile, std::byte* scratch) const;

 private:
  LinearCall call_of(int i, PackedWeight* weight) const;

  const ExpertPairs* pairs_ = nullptr;
  ExpertWeights weights_ = {};
  LinearCall call_ = {};
  const std::byte* then_ = nullptr;
  std::vector<int> ends_;  // tiles up to and including each expert that is hit
};

}  // namespace slipstream
