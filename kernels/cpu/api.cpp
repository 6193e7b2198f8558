// The C interface of the native kernels (see `native_library.py`). Only slipstream_model_run and
// slipstream_samples_last_rows are on a hot path.
#include <cstdint>
#include <vector>

#include "export.hpp"
#include "linear.hpp"
#include "program.hpp"
#include "team.hpp"

using slipstream::Model;
using slipstream::ModelShape;
using slipstream::Program;
using slipstream::SourceRows;
using slipstream::Step;
using slipstream::WeightShape;

namespace {

// One weight to pack from its sources into `packed`.
struct PackJob {
  WeightShape shape;
  const SourceRows* sources;
  int32_t num_sources;
  std::byte* packed;
};

// All panels of all weights, in one phase.
class Packing final : public slipstream::Work {
 public:
  Packing(const PackJob* jobs, int num_jobs) : jobs_(jobs) {
    int num_tiles = 0;
    for (int i = 0; i < num_jobs; ++i) ends_.push_back(num_tiles += slipstream::num_panels(jobs[i].shape));
  }

  int begin_phase(int phase, int) override { return phase > 0 || ends_.empty() ? slipstream::kWorkEnds : ends_.back(); }

  void run_tile(int, int tile, int) override {
    int job = 0;
    while (tile >= ends_[static_cast<size_t>(job)]) ++job;
    const int panel = job == 0 ? tile : tile - ends_[static_cast<size_t>(job - 1)];
    const PackJob& packed = jobs_[job];
    slipstream::pack_panel(packed.shape, packed.sources, packed.num_sources, panel, packed.packed);
  }

 private:
  const PackJob* jobs_;
  std::vector<int> ends_;  // tiles up to and including each job
};

}  // namespace

SLIPSTREAM_API int32_t slipstream_pack_format() { return slipstream::kPackFormat; }

SLIPSTREAM_API int64_t slipstream_packed_bytes(const WeightShape* shape) { return slipstream::packed_bytes(*shape); }

SLIPSTREAM_API void slipstream_pack(const PackJob* jobs, int32_t num_jobs) {
  Packing packing(jobs, num_jobs);
  slipstream::run_together(packing);
}

SLIPSTREAM_API Model* slipstream_model_create(const ModelShape* shape) {
  return slipstream::make_model(*shape).release();
}

SLIPSTREAM_API void slipstream_model_destroy(Model* model) { delete model; }

SLIPSTREAM_API int32_t slipstream_samples_last_rows(const Step* step) { return slipstream::samples_last_rows(*step); }

SLIPSTREAM_API void slipstream_model_run(Model* model, const Program* program, const Step* step, int32_t first,
                                         int32_t last) {
  model->run(*program, *step, first, last);
}
