// Bringing the words that come next near while rows are multiplied with those that are there, evenly: memory answers a
// limited number of requests at a time. A burst of them holds up everything behind it, and then memory is idle.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream::linear {

constexpr int kLineBytes = 64;
constexpr int kLinesAhead[] = {0, 1, 2, 4};  // cache lines that a step may ask for
constexpr int kNumLinesAhead = 4;

// What one pass over the words is to ask for: kLinesAhead[rate] lines in each step, from `from` on.
struct PassAhead {
  const std::byte* from;
  int rate;
};

// `lines` cache lines from `from` on, over `passes` passes of `steps` steps each.
class Fetch {
 public:
  Fetch(const std::byte* from, int64_t lines, int steps, int passes)
      : from_(from), lines_(lines), steps_(steps), passes_(passes) {}

  // The lowest rate that is not half a line a step behind at the end of the pass.
  PassAhead next_pass() {
    ++pass_;
    const int64_t due = lines_ * pass_ / passes_ - asked_;
    int rate = 0;
    while (rate + 1 < kNumLinesAhead && 2 * (due - int64_t{kLinesAhead[rate]} * steps_) > steps_) ++rate;
    const PassAhead pass{from_ + asked_ * kLineBytes, rate};
    asked_ += int64_t{kLinesAhead[rate]} * steps_;
    return pass;
  }

 private:
  const std::byte* from_;
  int64_t lines_;
  int steps_;
  int passes_;
  int pass_ = 0;
  int64_t asked_ = 0;
};

}  // namespace slipstream::linear
