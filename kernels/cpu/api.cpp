// The C interface of the native engine (see `library.py`). Nothing here is called on a hot path but slipstream_model_run.
#include <cstdint>
#include <vector>

#include "export.hpp"
#include "linear.hpp"
#include "model.hpp"
#include "team.hpp"

using slipstream::Model;
using slipstream::ModelShape;
using slipstream::ModelWeights;
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

SLIPSTREAM_API Model* slipstream_model_create(const ModelShape* shape, const ModelWeights* weights) {
  return slipstream::make_model(*shape, *weights).release();
}

SLIPSTREAM_API void slipstream_model_destroy(Model* model) { delete model; }

SLIPSTREAM_API void slipstream_model_run(Model* model, const Step* step, int32_t first, int32_t last) {
  model->run(*step, first, last);
}

SLIPSTREAM_API void slipstream_model_time(Model* model, int32_t is_timed) {
  model->is_timed = is_timed != 0;
  for (int op = 0; op < slipstream::kNumOps; ++op) model->op_ns[op] = model->op_calls[op] = 0;
}

// `ns` and `calls` are [kNumOps].
SLIPSTREAM_API void slipstream_model_times(const Model* model, int64_t* ns, int64_t* calls) {
  for (int op = 0; op < slipstream::kNumOps; ++op) {
    ns[op] = model->op_ns[op];
    calls[op] = model->op_calls[op];
  }
}
