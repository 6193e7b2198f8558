// Copies rows of one table to rows of another and computes the XXH3-64 of what it has copied, in one pass over memory.
//
// The checksum is taken from the very registers that are stored, so it costs next to nothing beside the copy. A core
// reads scattered pages at two thirds of its speed, because the prefetcher of the processor stops at each page: so the
// row after this one is asked for in time. Rows that are not read again soon are stored past the caches, which saves
// reading them before they are overwritten.

#include "rows.hpp"

// Does the jobs one after another. `checksums[i]` gets the XXH3-64 of all runs of job i in a row, `outcomes[i]` a
// rows::Outcome.
extern "C" __attribute__((visibility("default"))) void slipstream_do_copies(const rows::Job* jobs, int64_t num_jobs,
                                                                            uint64_t* checksums, int32_t* outcomes) {
    for (int64_t i = 0; i < num_jobs; ++i) outcomes[i] = rows::run(rows::read_job(jobs, i), checksums + i);
}
