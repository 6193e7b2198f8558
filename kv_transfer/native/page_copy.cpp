// Copies rows of one table to rows of another and computes the XXH3-64 of what it has copied, in one pass over memory.
//
// The checksum is taken from the very registers that are stored, so it costs next to nothing beside the copy. A core
// reads scattered pages at two thirds of its speed, because the prefetcher of the processor stops at each page: so the
// row after this one is asked for in time. Rows that are not read again soon are stored past the caches, which saves
// reading them before they are overwritten.

#include "rows.hpp"

using rows::Job;
using rows::Table;
using xxh3::Store;

namespace {

enum Outcome { kDone = 0, kOutOfRange = 1, kTooShort = 2 };

}  // namespace

// Does the jobs one after another. `checksums[i]` gets the XXH3-64 of all runs of job i in a row; `outcomes[i]` says
// kOutOfRange if an id is none of its table's rows, and kTooShort if there are at most 240 bytes in all: then nothing
// has been touched.
extern "C" __attribute__((visibility("default"))) void slipstream_copy_rows(const Job* jobs, int64_t num_jobs,
                                                                            uint64_t* checksums, int32_t* outcomes) {
    for (int64_t i = 0; i < num_jobs; ++i) {
        const Job& job = jobs[i];
        const Table &to = job.to, &from = job.from;
        if (job.num_runs * job.run_bytes < xxh3::kMinBytes) {
            outcomes[i] = kTooShort;
            continue;
        }
        if (!from.holds(job.num_runs) || (to.base && !to.holds(job.num_runs))) {
            outcomes[i] = kOutOfRange;
            continue;
        }
        if (!to.base) {
            checksums[i] = rows::copy<Store::kNone>(to, from, job.num_runs, job.run_bytes, job.seed);
        } else if (job.past_caches && rows::fits_streaming_stores(to, job.run_bytes)) {
            checksums[i] = rows::copy<Store::kStreaming>(to, from, job.num_runs, job.run_bytes, job.seed);
        } else {
            checksums[i] = rows::copy<Store::kCached>(to, from, job.num_runs, job.run_bytes, job.seed);
        }
        outcomes[i] = kDone;
    }
}
