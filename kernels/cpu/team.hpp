// The threads of this process that compute together.
//
// A piece of work is a row of phases, a phase is a number of independent tiles:
//
//     phase 0 | tile tile tile tile | phase 1 | tile tile | phase 2 | ...
//
// Threads claim tiles one by one, every other thread from the first half of the phase's tiles on and the rest from the
// second, and then what is left: where tiles are rows, a thread finds much of what it reads in its own caches, because it
// wrote it in the phase before. The thread that finishes the last tile of a phase begins the next: it runs the serial part
// (`begin_phase`) and publishes how many tiles there are. No thread waits for another that computes nothing: a helper
// that the system has not scheduled for a while misses tiles, it does not hold up the phase. So more threads than cores,
// or two processes on the same cores, cost at most the one tile that a preempted thread has in hand.
#pragma once

#include <cstdint>

namespace slipstream {

constexpr int kMaxThreads = 64;
constexpr int kWorkEnds = -1;

class Work {
 public:
  // The serial part of `phase`, and how many tiles it has (0 is allowed), or kWorkEnds after the last phase. Called
  // for 0, 1, 2 ..., each time by one thread, when all tiles of the phases before are done and visible to it.
  virtual int begin_phase(int phase, int thread) = 0;

  // `thread`, 0 .. num_threads() - 1, is another one for each of the threads that run at the same time: it selects
  // scratch memory.
  virtual void run_tile(int phase, int tile, int thread) = 0;

 protected:
  ~Work() = default;
};

// Runs `work` to its end, on the calling thread (number 0) and on the helpers, which keep off the core that it is called
// on. Callers take turns. Helpers start with the first work that has a use for them, sleep when there is none, end with
// the process, and start anew in a child after a fork.
void run_together(Work& work);

// Does not change while a work runs: what is sized by it in `begin_phase` fits.
int num_threads();

// How many of them claim from the same half.
int threads_of_queue();

// 1 .. kMaxThreads, the caller's included; other values are clamped. Waits for the work that runs.
void set_num_threads(int num_threads);

// How long a thread without a tile spins for the next phase before it sleeps. 0 sleeps at once.
void set_spin_ns(int64_t spin_ns);

// From here on the calling thread and the helpers have this niceness. A thread may raise its own, not lower it (see
// setpriority(2)): for less than before, call from a thread that has not stood back yet; helpers are started anew by it.
void set_niceness(int niceness);

// Binds thread i to cpus[i % num_cpus] from the next work on; the calling thread stays where it is. None unbinds.
void set_helper_cpus(const int32_t* cpus, int num_cpus);

}  // namespace slipstream
