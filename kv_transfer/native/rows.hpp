// Rows of a table that belong together as one string of bytes, and a pass over them that copies and sums up.

#pragma once

#include "xxh3.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace rows {

using xxh3::kBlockBytes;
using xxh3::kStripeBytes;
using xxh3::Store;

constexpr int64_t kAheadBytes = 16 * kBlockBytes;
constexpr int64_t kPageBytes = 4096;  // of the processor

struct Table {
    uint8_t* base;
    int64_t row_stride;
    int64_t num_rows;
    const int64_t* ids;  // or null: rows 0, 1, 2, ...

    uint8_t* row(int64_t i) const { return base + (ids ? ids[i] : i) * row_stride; }

    bool holds(int64_t num_runs) const {
        if (!ids) return num_runs <= num_rows;
        return std::all_of(ids, ids + num_runs, [this](int64_t id) { return 0 <= id && id < num_rows; });
    }
};

// The place in a table that is asked for ahead of time.
class Ahead {
  public:
    Ahead(const Table& table, int64_t num_runs, int64_t run_bytes)
        : table_(table), num_runs_(num_runs), run_bytes_(run_bytes) {
        skip(kAheadBytes);
    }

    const uint8_t* next() {
        const uint8_t* place = table_.row(std::min(row_, num_runs_ - 1)) + offset_;
        skip(kBlockBytes);
        return place;
    }

    // Where bytes are stored past the caches only the page's address has to be known in time: one line of it will do.
    void find_page() {
        const uint8_t* place = next();
        if (reinterpret_cast<uintptr_t>(place) % kPageBytes < kBlockBytes) {
            _mm_prefetch(reinterpret_cast<const char*>(place), _MM_HINT_T0);
        }
    }

  private:
    void skip(int64_t num_bytes) {
        offset_ += num_bytes;
        while (offset_ >= run_bytes_) {
            offset_ -= run_bytes_;
            ++row_;
        }
    }

    const Table& table_;
    int64_t num_runs_, run_bytes_, row_ = 0, offset_ = 0;
};

template <Store kStore>
uint64_t copy(const Table& to, const Table& from, int64_t num_runs, int64_t run_bytes, uint64_t seed) {
    const int64_t num_bytes = num_runs * run_bytes;
    int64_t blocks_left = (num_bytes - 1) / kBlockBytes;  // the rest, 1 to 1024 bytes, is the tail
    xxh3::Digest digest(seed);
    Ahead ahead(from, num_runs, run_bytes), ahead_to(kStore == Store::kStreaming ? to : from, num_runs, run_bytes);
    // What does not come as a whole block within a row is put together here; before it, the 64 bytes that preceded.
    uint8_t buffer[kStripeBytes + kBlockBytes];
    uint8_t* const pending = buffer + kStripeBytes;
    int64_t num_pending = 0;
    for (int64_t i = 0; i < num_runs; ++i) {
        const uint8_t* src = from.row(i);
        uint8_t* dst = kStore == Store::kNone ? nullptr : to.row(i);
        for (int64_t left = run_bytes; left > 0;) {
            int64_t size = kBlockBytes;
            if (num_pending == 0 && left >= kBlockBytes && blocks_left > 0) {
                if (kStore == Store::kStreaming) ahead_to.find_page();
                digest.take_block<kStore>(src, dst, ahead.next());
                if (--blocks_left == 0) std::memcpy(buffer, src + kBlockBytes - kStripeBytes, kStripeBytes);
            } else {
                size = std::min(kBlockBytes - num_pending, left);
                std::memcpy(pending + num_pending, src, size);
                if (kStore != Store::kNone) std::memcpy(dst, pending + num_pending, size);
                num_pending += size;
                if (num_pending == kBlockBytes && blocks_left > 0) {
                    digest.take_block<Store::kNone>(pending, nullptr, ahead.next());
                    std::memcpy(buffer, pending + kBlockBytes - kStripeBytes, kStripeBytes);
                    --blocks_left;
                    num_pending = 0;
                }
            }
            src += size;
            if (kStore != Store::kNone) dst += size;
            left -= size;
        }
    }
    if (kStore == Store::kStreaming) _mm_sfence();
    return digest.finish(pending, num_pending, num_bytes);
}

// For memory that another core has in its caches: what is stored is not fetched from there first. Before another
// thread learns of it, there must be an `_mm_sfence`.
inline void copy_past_caches(uint8_t* dst, const uint8_t* src, int64_t num_bytes) {
    const int64_t to_line = -reinterpret_cast<uintptr_t>(dst) % kStripeBytes, head = std::min(num_bytes, to_line);
    std::memcpy(dst, src, head);
    int64_t at = head;
    for (; at + kStripeBytes <= num_bytes; at += kStripeBytes) {
        for (int64_t half : {at, at + kStripeBytes / 2}) {
            const __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + half));
            _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + half), data);
        }
    }
    std::memcpy(dst + at, src + at, num_bytes - at);
}

// One copy: `run_bytes` of each of `num_runs` rows; `to.base` null only looks at them. `past_caches` is a wish.
struct Job {
    Table to, from;
    int64_t num_runs, run_bytes, past_caches;
    uint64_t seed;
};

// A job as it is handed in: in the place of pointers to ids there is where they begin, counted from the first job.
inline Job read_job(const Job* jobs, int64_t i) {
    Job job = jobs[i];
    for (Table* table : {&job.to, &job.from}) {
        const auto place = reinterpret_cast<uintptr_t>(table->ids);
        if (place) table->ids = reinterpret_cast<const int64_t*>(reinterpret_cast<uintptr_t>(jobs) + place);
    }
    return job;
}

inline bool fits_streaming_stores(const Table& to, int64_t run_bytes) {
    return (reinterpret_cast<uintptr_t>(to.base) | to.row_stride | run_bytes) % kStripeBytes == 0;
}

// kOutOfRange if an id is none of its table's rows, and kTooShort if there are at most 240 bytes in all: then nothing has
// been touched, and there is no checksum.
enum Outcome : int32_t { kDone = 0, kOutOfRange = 1, kTooShort = 2 };

inline Outcome run(const Job& job, uint64_t* checksum) {
    const Table &to = job.to, &from = job.from;
    if (job.num_runs * job.run_bytes < xxh3::kMinBytes) return kTooShort;
    if (!from.holds(job.num_runs) || (to.base && !to.holds(job.num_runs))) return kOutOfRange;
    if (!to.base) {
        *checksum = copy<Store::kNone>(to, from, job.num_runs, job.run_bytes, job.seed);
    } else if (job.past_caches && fits_streaming_stores(to, job.run_bytes)) {
        *checksum = copy<Store::kStreaming>(to, from, job.num_runs, job.run_bytes, job.seed);
    } else {
        *checksum = copy<Store::kCached>(to, from, job.num_runs, job.run_bytes, job.seed);
    }
    return kDone;
}

}  // namespace rows
