// A piece of work that tests can look at.

#include <atomic>
#include <cstdint>

#include "export.hpp"
#include "team.hpp"

using namespace slipstream;

namespace {

// Counts how often each tile runs, and looks whether all tiles of the phase before were done.
class Counting final : public Work {
 public:
  Counting(int num_phases, int num_tiles, int32_t* counts, int32_t* threads)
      : num_phases_(num_phases), num_tiles_(num_tiles), counts_(counts), threads_(threads) {}

  int begin_phase(int phase, int) override {
    if (phase > 0 && done_.load() != tiles_of(phase - 1)) ++num_early_;
    done_ = 0;
    return phase < num_phases_ ? tiles_of(phase) : kWorkEnds;
  }

  void run_tile(int phase, int tile, int thread) override {
    counts_[phase * num_tiles_ + tile] += 1;
    threads_[phase * num_tiles_ + tile] = thread;
    for (volatile int i = 0; i < 200; i = i + 1) {
    }
    done_.fetch_add(1);
  }

  int num_early() const { return num_early_; }

 private:
  // 0, 1, 2 .. num_tiles, 0, 1 ...: phases without tiles and with one are special.
  int tiles_of(int phase) const { return phase % (num_tiles_ + 1); }

  int num_phases_, num_tiles_;
  int32_t* counts_;
  int32_t* threads_;
  std::atomic<int> done_{0};
  int num_early_ = 0;
};

}  // namespace

// `counts` and `threads` are [num_phases, num_tiles]; phase p has p % (num_tiles + 1) tiles. Returns how many phases
// began before the one before them had ended.
SLIPSTREAM_API int32_t slipstream_team_count(int32_t num_phases, int32_t num_tiles, int32_t* counts, int32_t* threads) {
  Counting counting(num_phases, num_tiles, counts, threads);
  run_together(counting);
  return counting.num_early();
}
