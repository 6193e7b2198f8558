// Copies that a thread has waiting, done by it and by one helper beside it.
//
// The owner hands in jobs, does some of them itself, and takes back what is finished, in one call. The helper takes from
// the same queue while the owner copies, and while the owner is busy with something else: with the messages that the
// copies come from. It leaves the last jobs to the owner, who has nothing better to do.
//
//     owner    hand in 0 1 2 3 4 5   do 0    do 2    take back 0 1 2    do 4    do 5   take back 3 4 5
//     helper                         do 1    do 3 ..............
//
// A helper is of use where a core has nothing to do. Where there is none, it would hold a copy in its hands while it
// waits for its turn. It finds that out by looking at its own clock: a copy that took much longer than the processor
// time it used was interrupted, and one that began long after the call came late. Then it stands back for a while.

#include "rows.hpp"

#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <new>

using rows::Job;

namespace {

constexpr int64_t kSlots = 64;
constexpr int64_t kLeftToOwner = 1;             // jobs
constexpr int64_t kLateNs = 1000000;            // that much too late, or interrupted for so long,
constexpr int64_t kStandBackNs = 50 * kLateNs;  // and the helper does nothing for so long

struct Slot {
    Job job;
    bool is_finished;
    uint64_t checksum;
    int32_t outcome;
};

int64_t read_clock(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

class Lock {
  public:
    explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
    ~Lock() { pthread_mutex_unlock(&mutex_); }
    Lock(const Lock&) = delete;

  private:
    pthread_mutex_t& mutex_;
};

class Crew {
  public:
    explicit Crew(int32_t bell) : bell_(bell) {}
    Crew(const Crew&) = delete;

    // Where no thread is to be had, the owner does everything.
    void start_helper() {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 128 << 10);
        const auto main = [](void* crew) -> void* {
            static_cast<Crew*>(crew)->help();
            return nullptr;
        };
        has_helper_ = pthread_create(&helper_, &attributes, main, this) == 0;
        pthread_attr_destroy(&attributes);
    }

    ~Crew() {
        {
            Lock lock(mutex_);
            is_ending_ = true;
            pthread_cond_broadcast(&called_);
        }
        if (has_helper_) pthread_join(helper_, nullptr);
    }

    bool hand_in(const Job* jobs, int64_t num_jobs) {
        Lock lock(mutex_);
        if (num_jobs > first_ + kSlots - end_) return false;
        for (int64_t i = 0; i < num_jobs; ++i) slots_[end_++ % kSlots] = {rows::read_job(jobs, i), false, 0, 0};
        if (is_helper_waiting_ && !called_ns_ && end_ - next_ > kLeftToOwner + 1) {
            const int64_t now_ns = read_clock(CLOCK_MONOTONIC);
            if (now_ns >= stands_back_until_ns_) {
                keep_apart();
                called_ns_ = now_ns;
                pthread_cond_signal(&called_);
            }
        }
        return true;
    }

    void work(int64_t max_jobs) {
        for (; max_jobs > 0; --max_jobs) {
            Slot* slot = nullptr;
            {
                Lock lock(mutex_);
                slot = take(0);
            }
            if (!slot) return;
            slot->outcome = rows::run(slot->job, &slot->checksum);
            Lock lock(mutex_);
            slot->is_finished = true;
        }
    }

    int64_t take_back(uint64_t* checksums, int32_t* outcomes, int64_t* num_left) {
        Lock lock(mutex_);
        int64_t num_done = 0;
        while (first_ < end_ && slots_[first_ % kSlots].is_finished) {
            const Slot& slot = slots_[first_++ % kSlots];
            checksums[num_done] = slot.checksum;
            outcomes[num_done++] = slot.outcome;
        }
        *num_left = end_ - next_;
        owner_waits_ = first_ < end_ && next_ == end_;
        return num_done;
    }

    // Nobody is at work on anything when this returns, and what was not begun never will be.
    void drop_all() {
        Lock lock(mutex_);
        next_ = end_;
        while (is_helping_) pthread_cond_wait(&helped_, &mutex_);
        first_ = end_;
    }

  private:
    // A thread that is woken is often put on the core of the one that wakes it, where it would wait for it to be done.
    void keep_apart() {
        const int core = sched_getcpu();
        if (core < 0 || core == apart_from_core_) return;
        cpu_set_t cores;
        if (pthread_getaffinity_np(pthread_self(), sizeof cores, &cores)) return;
        CPU_CLR(core, &cores);
        if (CPU_COUNT(&cores) && !pthread_setaffinity_np(helper_, sizeof cores, &cores)) apart_from_core_ = core;
    }

    // The next job, if more than so many are left beside it. With the lock.
    Slot* take(int64_t num_left) {
        if (end_ - next_ <= num_left) return nullptr;
        return &slots_[next_++ % kSlots];
    }

    void help() {
        Lock lock(mutex_);
        while (!is_ending_) {
            const int64_t began_ns = read_clock(CLOCK_MONOTONIC);
            if (called_ns_ && began_ns - called_ns_ > kLateNs) stands_back_until_ns_ = began_ns + kStandBackNs;
            called_ns_ = 0;
            Slot* const slot = began_ns < stands_back_until_ns_ ? nullptr : take(kLeftToOwner);
            if (!slot) {
                is_helper_waiting_ = true;
                pthread_cond_wait(&called_, &mutex_);
                is_helper_waiting_ = false;
                continue;
            }
            is_helping_ = true;
            pthread_mutex_unlock(&mutex_);
            const int64_t cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
            const int32_t outcome = rows::run(slot->job, &slot->checksum);
            const int64_t taken_ns = read_clock(CLOCK_MONOTONIC) - began_ns;
            const int64_t interrupted_ns = taken_ns - (read_clock(CLOCK_THREAD_CPUTIME_ID) - cpu_ns);
            pthread_mutex_lock(&mutex_);
            is_helping_ = false;
            slot->outcome = outcome;
            slot->is_finished = true;
            if (interrupted_ns > kLateNs) stands_back_until_ns_ = began_ns + kStandBackNs;
            pthread_cond_signal(&helped_);
            if (owner_waits_) {
                owner_waits_ = false;
                const uint64_t one = 1;
                if (write(bell_, &one, sizeof one) < 0) continue;  // it has been rung often enough
            }
        }
    }

    const int32_t bell_;
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t called_ = PTHREAD_COND_INITIALIZER, helped_ = PTHREAD_COND_INITIALIZER;
    pthread_t helper_{};
    bool has_helper_ = false, is_helper_waiting_ = false, is_helping_ = false, is_ending_ = false, owner_waits_ = false;
    int apart_from_core_ = -1;
    int64_t called_ns_ = 0, stands_back_until_ns_ = 0;
    // Jobs by number: handed in below end_, begun below next_, taken back below first_.
    int64_t first_ = 0, next_ = 0, end_ = 0;
    Slot slots_[kSlots];
};

Crew* as_crew(void* crew) { return static_cast<Crew*>(crew); }

}  // namespace

#define SLIPSTREAM_API extern "C" __attribute__((visibility("default")))

// A crew of its owner and, if `has_helper`, one thread beside it. `bell` is an eventfd, rung when the helper has finished
// something that nothing but it was waited for. Null if there is no memory.
SLIPSTREAM_API void* slipstream_open_crew(int32_t bell, int32_t has_helper) {
    Crew* crew = new (std::nothrow) Crew(bell);
    if (crew && has_helper) crew->start_helper();
    return crew;
}

// Hands in jobs, for which there must be room and which must stay until they are taken back, does at most `max_own` of those that wait, and returns how many have been
// finished: these are the oldest that have not been taken back, and they are from now on. `num_left` gets how many have
// not been begun. -1 if there is no room.
SLIPSTREAM_API int64_t slipstream_crew_work(void* crew, const Job* jobs, int64_t num_jobs, int64_t max_own,
                                            int64_t* num_left, uint64_t* checksums, int32_t* outcomes) {
    if (!as_crew(crew)->hand_in(jobs, num_jobs)) return -1;
    as_crew(crew)->work(max_own);
    return as_crew(crew)->take_back(checksums, outcomes, num_left);
}

// Returns when nobody is at work, and forgets all that was not taken back.
SLIPSTREAM_API void slipstream_crew_drop_all(void* crew) { as_crew(crew)->drop_all(); }

SLIPSTREAM_API void slipstream_close_crew(void* crew) { delete as_crew(crew); }
