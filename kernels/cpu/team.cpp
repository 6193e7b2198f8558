#include "team.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <new>

#include "clock.hpp"
#include "export.hpp"

namespace slipstream {
namespace {

constexpr int64_t kDefaultSpinNs = 20'000;
constexpr int kPausesPerLook = 8;
constexpr int kTileBits = 24;
constexpr uint64_t kTileMask = (uint64_t{1} << kTileBits) - 1;
constexpr int kNumQueues = 2;

void pause() { __builtin_ia32_pause(); }

class Team {
 public:
  void run(Work& work);
  void set_num_threads(int count);
  void help(int thread);
  void dismiss_helpers();
  void after_fork();

  std::atomic<int> num_threads{1};
  std::atomic<int64_t> spin_ns{kDefaultSpinNs};
  std::atomic<int> num_cpus{0};
  std::atomic<int> niceness{0};
  std::atomic<int> place_version{0};  // of all that `take_place` looks at
  std::atomic<int32_t> cpus[kMaxThreads] = {};

 private:
  struct Look {
    uint64_t epoch;
    bool claimed;
    int tile, phase;
    Work* work;
  };

  // The tiles [begin, end) of a phase; epoch << kTileBits | next tile. The epoch grows with every phase of every work and
  // is never seen twice, so a claim made by compare-and-swap holds only if `work_`, `phase_` and `num_tiles_`, read
  // before it, belonged to that epoch.
  struct alignas(64) Queue {
    std::atomic<uint64_t> state{0};
  };
  static int begin_of(int queue, int num_tiles) { return queue == 0 ? 0 : (num_tiles + 1) / 2; }
  static int end_of(int queue, int num_tiles) { return queue == 0 ? (num_tiles + 1) / 2 : num_tiles; }

  void start_helpers();
  void keep_clear_of_caller();
  Look claim(int thread);
  Look claim_from(int queue);
  uint64_t epoch() const { return queues_[0].state.load(std::memory_order_acquire) >> kTileBits; }
  void finish_tile(Work* work, int phase, int thread);
  void advance(Work* work, int phase, int thread);
  void publish(Work* work, int phase, int num_tiles);
  void wait_beyond(uint64_t epoch, bool is_idle);
  void take_place(int thread, int* version) const;

  Queue queues_[kNumQueues];  // the first is the last that an epoch begins with
  alignas(64) std::atomic<Work*> work_{nullptr};
  std::atomic<int> phase_{0};
  std::atomic<int> num_tiles_{0};
  alignas(64) std::atomic<int> num_done_{0};
  alignas(64) std::atomic<uint32_t> signal_{0};  // what sleepers sleep on; changes with every epoch
  std::atomic<int> num_sleepers_{0};
  alignas(64) pthread_mutex_t turn_ = PTHREAD_MUTEX_INITIALIZER;
  std::atomic<bool> dismissed_{false};
  std::atomic<int> num_live_{0};  // helpers that have not ended
  int num_helpers_ = 0;
  int caller_cpu_ = -1;                              // that helpers keep away from
  int num_clear_ = 0;                                // helpers that do
  std::atomic<pid_t> helper_ids_[kMaxThreads] = {};  // 0: not running yet
};

// Never destroyed: helpers sleep on it until the process is gone.
Team& team() {
  static Team* const the_team = [] {
    alignas(Team) static unsigned char place[sizeof(Team)];
    auto* made = new (place) Team();
    pthread_atfork(nullptr, nullptr, [] { team().after_fork(); });
    return made;
  }();
  return *the_team;
}

void* helper_main(void* thread) {
  team().help(static_cast<int>(reinterpret_cast<intptr_t>(thread)));
  return nullptr;
}

void Team::run(Work& work) {
  pthread_mutex_lock(&turn_);
  start_helpers();
  keep_clear_of_caller();
  advance(&work, -1, 0);
  for (;;) {
    const Look look = claim(0);
    if (look.claimed) {
      look.work->run_tile(look.phase, look.tile, 0);
      finish_tile(look.work, look.phase, 0);
    } else if (look.work == nullptr) {
      break;
    } else {
      wait_beyond(look.epoch, false);
    }
  }
  pthread_mutex_unlock(&turn_);
}

void Team::set_num_threads(int count) {
  pthread_mutex_lock(&turn_);
  num_threads = std::clamp(count, 1, kMaxThreads);
  pthread_mutex_unlock(&turn_);
}

// A helper that is woken after a pause is often put on the core of the thread that wakes it, where it waits for the end
// of that thread's time slice, milliseconds, while another core idles. So helpers may run anywhere but there.
void Team::keep_clear_of_caller() {
  const int cpu = sched_getcpu();
  if (num_cpus.load(std::memory_order_relaxed) > 0) return;  // bound already
  if (cpu == caller_cpu_ && num_clear_ == num_helpers_) return;
  cpu_set_t set;
  if (cpu < 0 || sched_getaffinity(0, sizeof set, &set) != 0) return;
  CPU_CLR(cpu, &set);
  if (CPU_COUNT(&set) == 0) return;
  num_clear_ = 0;
  for (int i = 1; i <= num_helpers_; ++i) {
    const pid_t helper = helper_ids_[i].load(std::memory_order_acquire);
    num_clear_ += helper != 0 && sched_setaffinity(helper, sizeof set, &set) == 0;
  }
  caller_cpu_ = cpu;
}

void Team::help(int thread) {
  int version = 0;
  helper_ids_[thread].store(static_cast<pid_t>(syscall(SYS_gettid)), std::memory_order_release);
  while (!dismissed_.load(std::memory_order_acquire)) {
    take_place(thread, &version);
    const bool takes_part = thread < num_threads.load(std::memory_order_relaxed);
    Look look = {};
    if (takes_part) {
      look = claim(thread);
      if (look.claimed) {
        look.work->run_tile(look.phase, look.tile, thread);
        finish_tile(look.work, look.phase, thread);
        continue;
      }
    } else {
      look.epoch = epoch();
    }
    wait_beyond(look.epoch, !takes_part);
  }
  helper_ids_[thread].store(0, std::memory_order_release);
  num_live_.fetch_sub(1, std::memory_order_release);
}

// Between two works: no thread has a tile.
void Team::dismiss_helpers() {
  pthread_mutex_lock(&turn_);
  dismissed_.store(true, std::memory_order_seq_cst);
  signal_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &signal_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  while (num_live_.load(std::memory_order_acquire) > 0) sched_yield();
  num_helpers_ = num_clear_ = 0;
  dismissed_.store(false, std::memory_order_release);
  pthread_mutex_unlock(&turn_);
}

// Each thread begins at its own end, so that in one phase after another it has the same rows, which its caches hold
// already, and goes on with what the others have left.
Team::Look Team::claim(int thread) {
  for (;;) {
    const Look own = claim_from(thread % kNumQueues);
    if (own.claimed) return own;
    const Look other = claim_from((thread + 1) % kNumQueues);
    if (other.claimed || other.epoch == own.epoch) return other;
  }
}

Team::Look Team::claim_from(int queue) {
  std::atomic<uint64_t>& shared = queues_[queue].state;
  uint64_t state = shared.load(std::memory_order_acquire);
  for (;;) {
    Look look = {state >> kTileBits, false, static_cast<int>(state & kTileMask), 0, nullptr};
    if (look.tile == kTileMask) {  // the next epoch is being written
      pause();
      state = shared.load(std::memory_order_acquire);
      continue;
    }
    look.work = work_.load(std::memory_order_acquire);
    look.phase = phase_.load(std::memory_order_acquire);
    const int num_tiles = num_tiles_.load(std::memory_order_acquire);
    if (look.work == nullptr || look.tile >= end_of(queue, num_tiles)) {
      // What was read may belong to the next epoch already; an unchanged state says that it does not.
      const uint64_t again = shared.load(std::memory_order_acquire);
      if (again == state) return look;
      state = again;
    } else if (shared.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      look.claimed = true;
      return look;
    }
  }
}

void Team::finish_tile(Work* work, int phase, int thread) {
  // While this tile is not counted the phase cannot end, so num_tiles_ is still that of the phase.
  const int num_tiles = num_tiles_.load(std::memory_order_relaxed);
  if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_tiles) advance(work, phase, thread);
}

// Goes on behind `phase`. Phases of a single tile are not worth telling anybody.
void Team::advance(Work* work, int phase, int thread) {
  for (;;) {
    const int num_tiles = work->begin_phase(++phase, thread);
    if (num_tiles == kWorkEnds) return publish(nullptr, 0, 0);
    if (num_tiles > 1) return publish(work, phase, num_tiles);
    if (num_tiles == 1) work->run_tile(phase, 0, thread);
  }
}

void Team::publish(Work* work, int phase, int num_tiles) {
  const uint64_t next = (queues_[0].state.load(std::memory_order_relaxed) >> kTileBits) + 1;
  // Until the next epoch is complete no thread may claim, not even one that has read its number of tiles with the old state.
  for (Queue& queue : queues_) queue.state.store((next - 1) << kTileBits | kTileMask, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  num_done_.store(0, std::memory_order_relaxed);
  work_.store(work, std::memory_order_relaxed);
  phase_.store(phase, std::memory_order_relaxed);
  num_tiles_.store(num_tiles, std::memory_order_relaxed);
  for (int queue = kNumQueues - 1; queue >= 0; --queue) {
    const auto first = static_cast<uint64_t>(begin_of(queue, num_tiles));
    queues_[queue].state.store(next << kTileBits | first, std::memory_order_release);
  }
  signal_.fetch_add(1, std::memory_order_seq_cst);
  if (num_sleepers_.load(std::memory_order_seq_cst) > 0) {
    syscall(SYS_futex, &signal_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
}

void Team::wait_beyond(uint64_t epoch, bool is_idle) {
  const int64_t patience_ns = is_idle ? 0 : spin_ns.load(std::memory_order_relaxed);
  if (patience_ns > 0) {
    const int64_t deadline = now_ns() + patience_ns;
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        if (this->epoch() != epoch) return;
        pause();
      }
    } while (now_ns() < deadline);
  }
  num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t signal = signal_.load(std::memory_order_seq_cst);
  // The dismissing thread sets its flag first and then changes the signal.
  const bool stays = !dismissed_.load(std::memory_order_seq_cst);
  if (stays && queues_[0].state.load(std::memory_order_seq_cst) >> kTileBits == epoch) {
    syscall(SYS_futex, &signal_, FUTEX_WAIT_PRIVATE, signal, nullptr, nullptr, 0);
  }
  num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Team::start_helpers() {
  while (num_helpers_ + 1 < num_threads.load(std::memory_order_relaxed)) {
    pthread_t helper;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    // Signals are for the threads that know what to do with them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const intptr_t thread = num_helpers_ + 1;
    num_live_.fetch_add(1, std::memory_order_relaxed);
    const int failed = pthread_create(&helper, &attributes, helper_main, reinterpret_cast<void*>(thread));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    if (failed) {  // fewer threads do the same work
      num_live_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
    ++num_helpers_;
  }
}

void Team::take_place(int thread, int* version) const {
  const int wanted = place_version.load(std::memory_order_acquire);
  if (*version == wanted) return;
  *version = wanted;
  const int wanted_niceness = niceness.load(std::memory_order_relaxed);
  if (wanted_niceness > 0) setpriority(PRIO_PROCESS, 0, wanted_niceness);  // of this thread alone
  cpu_set_t set;
  CPU_ZERO(&set);
  const int count = num_cpus.load(std::memory_order_relaxed);
  if (count > 0) {
    CPU_SET(cpus[thread % count].load(std::memory_order_relaxed), &set);
  } else if (sched_getaffinity(getpid(), sizeof set, &set) != 0) {
    return;
  }
  sched_setaffinity(0, sizeof set, &set);  // a refusal leaves the thread where it was
}

void Team::after_fork() {
  // The helpers have stayed behind, possibly in the middle of something.
  num_helpers_ = 0;
  num_clear_ = 0;
  num_live_ = 0;
  dismissed_ = false;
  for (auto& id : helper_ids_) id = 0;
  num_sleepers_ = 0;
  num_done_ = 0;
  num_tiles_ = 0;
  work_ = nullptr;
  const uint64_t next = (queues_[0].state >> kTileBits) + 1;
  for (Queue& queue : queues_) queue.state = next << kTileBits;
  turn_ = PTHREAD_MUTEX_INITIALIZER;
}

}  // namespace

void run_together(Work& work) { team().run(work); }

int num_threads() { return team().num_threads.load(std::memory_order_relaxed); }

int threads_of_queue() { return (num_threads() + kNumQueues - 1) / kNumQueues; }

void set_num_threads(int num_threads) { team().set_num_threads(num_threads); }

void set_spin_ns(int64_t spin_ns) { team().spin_ns = spin_ns; }

void set_helper_cpus(const int32_t* cpus, int num_cpus) {
  Team& t = team();
  const int count = std::min(num_cpus, kMaxThreads);
  for (int i = 0; i < count; ++i) t.cpus[i] = cpus[i];
  t.num_cpus = count;
  t.place_version.fetch_add(1, std::memory_order_release);
}

void set_niceness(int niceness) {
  setpriority(PRIO_PROCESS, 0, niceness);
  const bool is_less = niceness < team().niceness.exchange(niceness);
  if (is_less) team().dismiss_helpers();  // no thread may take it back; those that the next caller starts have its own
  team().place_version.fetch_add(1, std::memory_order_release);
}

}  // namespace slipstream

SLIPSTREAM_API void slipstream_set_num_threads(int32_t num_threads) { slipstream::set_num_threads(num_threads); }

SLIPSTREAM_API int32_t slipstream_num_threads() { return slipstream::num_threads(); }

SLIPSTREAM_API void slipstream_set_spin_ns(int64_t spin_ns) { slipstream::set_spin_ns(spin_ns); }

SLIPSTREAM_API void slipstream_set_helper_cpus(const int32_t* cpus, int32_t num_cpus) {
  slipstream::set_helper_cpus(cpus, num_cpus);
}

SLIPSTREAM_API void slipstream_set_niceness(int32_t niceness) { slipstream::set_niceness(niceness); }
