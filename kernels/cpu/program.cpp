#include "program.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "buffer.hpp"
#include "clock.hpp"
#include "elementwise.hpp"
#include "team.hpp"

namespace slipstream {
namespace {

// Numbers that a tile of an elementwise phase reads: a few microseconds of work.
constexpr int kTileNumbers = 16384;

// Each instruction is a phase: at its end all threads meet.
template <typename T>
class TypedModel final : public Model, private Work {
 public:
  explicit TypedModel(const ModelShape& shape);

  void run(const Program& program, const Step& step, int first, int last) override;

 private:
  int begin_phase(int phase, int thread) override;
  void run_tile(int phase, int tile, int thread) override;

  void count_time(int phase);
  int begin(int phase);
  int begin_rows(int rows, int numbers_of_row);
  int begin_linear(const Instruction& instruction);
  int begin_experts(const Instruction& instruction, bool has_next);
  void gather(const Instruction& instruction) const;

  const Instruction& instruction(int phase) const { return program_.instructions[first_ + phase]; }
  int num_rows(const Instruction& instruction) const {
    return instruction.on_samples ? step_.num_samples : step_.num_tokens;
  }
  template <typename U>
  U* buffer(int number) const {
    return reinterpret_cast<U*>(step_.buffers[number]);
  }
  int width(int number) const { return program_.rows[number].numbers; }
  StepGroup group(int number) const {
    if (number > 0) return step_.more_groups[number - 1];
    return {step_.slots, step_.page_table, step_.page_table_stride};
  }
  size_t num_angles() const { return static_cast<size_t>(step_.num_tokens) * static_cast<size_t>(shape_.head_dim / 2); }
  float* cosines(int rotary) const { return angles_.data() + 2 * static_cast<size_t>(rotary) * num_angles(); }
  float* sines(int rotary) const { return cosines(rotary) + num_angles(); }
  std::byte* kv_layer(int layer) const { return step_.kv + layer * step_.num_pages * page_bytes_; }
  std::byte* scratch(int thread) const { return scratch_.data() + thread * scratch_bytes_; }

  ModelShape shape_;
  std::vector<std::vector<float>> inv_freq_;  // by kind of rotary angles
  std::vector<float> rotary_scales_;
  std::vector<AttentionKind> kinds_;
  std::vector<AttentionPlan> plans_;  // one a kind of attention
  KvShape kv_shape_;
  int64_t page_bytes_;
  Buffer<float> angles_;  // [rotaries, cosines and sines, tokens, head_dim / 2]
  Buffer<std::byte> scratch_;
  int64_t scratch_bytes_;

  // The step at hand.
  Program program_ = {};
  Step step_ = {};
  int first_ = 0, last_ = 0;
  LinearCall call_ = {};
  ExpertPairs pairs_;
  ExpertProducts products_;
  int rows_ = 0, rows_of_tile_ = 1;
  int64_t phase_began_ns_ = 0;
};

template <typename T>
TypedModel<T>::TypedModel(const ModelShape& shape)
    : shape_(shape),
      kinds_(shape.kinds, shape.kinds + shape.num_kinds),
      kv_shape_(dense_pages(shape.num_kv_heads, shape.head_dim, shape.page_tokens, shape.kv_format, sizeof(T))),
      page_bytes_(kv_shape_.page_stride) {
  for (int i = 0; i < shape.num_rotaries; ++i) {
    const RotaryKind& rotary = shape.rotaries[i];
    inv_freq_.emplace_back(rotary.inv_freq, rotary.inv_freq + shape.head_dim / 2);
    rotary_scales_.push_back(rotary.scale);
  }
  size_t attention_bytes = 0;
  for (const AttentionKind& kind : kinds_) {
    const AttentionShape attention{kv_shape_, shape.num_heads,       kind.window,
                                   0,         shape.attention_scale, shape.attention_softcap};
    plans_.emplace_back(attention);
    attention_bytes = std::max(attention_bytes, attention_scratch_bytes(attention));
  }
  scratch_bytes_ = (std::max<int64_t>(kLinearScratchBytes, attention_bytes) + 63) / 64 * 64;
}

template <typename T>
void TypedModel<T>::run(const Program& program, const Step& step, int first, int last) {
  program_ = program;
  step_ = step;
  first_ = first;
  last_ = last;
  angles_.reserve(inv_freq_.size() * static_cast<size_t>(step.num_tokens) * static_cast<size_t>(shape_.head_dim));
  if (first == 0) {
    const bool has_last_rows = samples_last_rows(step);
    for (size_t i = 0; i < plans_.size(); ++i) {
      const StepGroup pages = group(kinds_[i].group);
      const AttentionBatch batch{step.num_seqs, step.query_starts, step.kv_lens, pages.page_table,
                                 pages.page_table_stride};
      if (!kinds_[i].on_samples) {
        plans_[i].build(batch);
      } else if (has_last_rows) {
        plans_[i].build(batch, step.sample_rows, step.num_samples);
      }
    }
  }
  run_together(*this);
}

template <typename T>
void TypedModel<T>::count_time(int phase) {
  const int64_t now = now_ns();
  if (phase > 0) program_.ns[first_ + phase - 1] += now - phase_began_ns_;
  phase_began_ns_ = now;
}

template <typename T>
int TypedModel<T>::begin_phase(int phase, int) {
  // Here, where the number of threads is that of this work.
  if (phase == 0) scratch_.reserve(static_cast<size_t>(num_threads() * scratch_bytes_));
  if (program_.ns != nullptr) count_time(phase);
  if (first_ + phase == last_) return kWorkEnds;
  return begin(phase);
}

template <typename T>
int TypedModel<T>::begin(int phase) {
  const Instruction& instruction = this->instruction(phase);
  const int rows = num_rows(instruction);
  switch (instruction.op) {
    case Op::embed: return begin_rows(rows, width(instruction.target));
    case Op::rotary: return begin_rows(rows, 8 * shape_.head_dim);  // a sine costs more than a product
    case Op::norm:
    case Op::add_norm:
    case Op::write: return begin_rows(rows, width(instruction.source));
    case Op::linear: return begin_linear(instruction);
    case Op::attend: return plans_[static_cast<size_t>(instruction.attention)].num_tiles();
    case Op::gather: gather(instruction); return 0;
    case Op::best: return shape_.num_ids == 0 ? 0 : begin_rows(rows, shape_.num_ids);
    case Op::route:
      pairs_.begin(instruction.routing, rows);
      return begin_rows(rows, instruction.routing.num_experts * instruction.routing.top_k);
    case Op::permute: {
      const int64_t counts = int64_t{instruction.moe_layer} * pairs_.routing().num_experts;
      pairs_.sort(step_.expert_rows == nullptr ? nullptr : step_.expert_rows + counts);
      return begin_rows(rows, width(instruction.source) * pairs_.routing().top_k);
    }
    case Op::experts: return begin_experts(instruction, first_ + phase + 1 < last_);
    case Op::combine: return begin_rows(rows, width(instruction.source) * pairs_.routing().top_k);
  }
  return 0;
}

template <typename T>
int TypedModel<T>::begin_rows(int rows, int numbers_of_row) {
  rows_ = rows;
  rows_of_tile_ = std::max(1, kTileNumbers / std::max(1, numbers_of_row));
  return (rows + rows_of_tile_ - 1) / rows_of_tile_;
}

template <typename T>
int TypedModel<T>::begin_linear(const Instruction& instruction) {
  const WeightShape& weight = instruction.packed.shape;
  if (weight.outputs == 0) return 0;  // a rank without a share of the vocabulary
  call_ = {&instruction.packed,
           instruction.bias,
           shape_.type,
           buffer<T>(instruction.source),
           weight.inputs,
           num_rows(instruction),
           instruction.epilogue,
           buffer<std::byte>(instruction.target),
           width(instruction.target),
           threads_of_queue(),
           instruction.alpha,
           instruction.limit};
  return num_tiles(call_);
}

template <typename T>
int TypedModel<T>::begin_experts(const Instruction& instruction, bool has_next) {
  LinearCall call = {};
  call.type = shape_.type;
  call.x = buffer<T>(instruction.source);
  call.x_stride = width(instruction.source);
  call.epilogue = instruction.epilogue;
  call.y = buffer<std::byte>(instruction.target);
  call.y_stride = width(instruction.target);
  call.tiles_ahead = threads_of_queue();
  call.alpha = instruction.alpha;
  call.limit = instruction.limit;
  const ExpertWeights weights{instruction.packed, instruction.expert_bytes, instruction.bias};
  const Instruction* next = has_next ? &instruction + 1 : nullptr;
  const bool then_experts = next != nullptr && next->op == Op::experts && pairs_.num_hit() > 0;
  const std::byte* then = then_experts ? next->packed.data + pairs_.hit(0) * next->expert_bytes : nullptr;
  return products_.begin(pairs_, weights, call, then);
}

// Few rows, so the thread that begins the phase copies them.
template <typename T>
void TypedModel<T>::gather(const Instruction& instruction) const {
  const int64_t bytes = program_.rows[instruction.source].bytes;
  const std::byte* source = step_.buffers[instruction.source];
  std::byte* target = step_.buffers[instruction.target];
  for (int i = 0; i < step_.num_samples; ++i) {
    std::memcpy(target + i * bytes, source + step_.sample_rows[i] * bytes, static_cast<size_t>(bytes));
  }
}

template <typename T>
void TypedModel<T>::run_tile(int phase, int tile, int thread) {
  const Instruction& now = instruction(phase);
  const int first = tile * rows_of_tile_, last = std::min(first + rows_of_tile_, rows_);
  switch (now.op) {
    case Op::embed:
      embed(static_cast<const T*>(now.weight), step_.token_ids, shape_.first_id, shape_.num_ids, now.scale,
            buffer<float>(now.target), width(now.target), first, last);
      return;
    case Op::rotary:
      rotary_table(step_.positions, inv_freq_[static_cast<size_t>(now.rotary)].data(), shape_.head_dim / 2,
                   rotary_scales_[static_cast<size_t>(now.rotary)], cosines(now.rotary), sines(now.rotary), first,
                   last);
      return;
    case Op::norm:
      if (now.gathers) {
        rms_norm_gathered(buffer<float>(now.source), step_.sample_rows, static_cast<const float*>(now.weight),
                          buffer<T>(now.target), width(now.source), now.eps, first, last);
      } else {
        rms_norm(buffer<float>(now.source), static_cast<const float*>(now.weight), buffer<T>(now.target),
                 width(now.source), now.eps, first, last);
      }
      return;
    case Op::add_norm:
      add_rms_norm(buffer<float>(now.source), static_cast<const float*>(now.weight), buffer<float>(now.target),
                   width(now.source), now.eps, first, last);
      return;
    case Op::linear: slipstream::run_tile(call_, tile, scratch(thread)); return;
    case Op::write: {
      const KvWrite<T> write{kv_shape_,
                             shape_.num_heads,
                             buffer<T>(now.source),
                             cosines(now.rotary),
                             sines(now.rotary),
                             static_cast<const float*>(now.weight),
                             now.eps,
                             group(now.group).slots,
                             kv_layer(now.layer)};
      write_keys_values(write, first, last);
      return;
    }
    case Op::attend: {
      const AttentionLayer<T> layer{buffer<T>(now.source),
                                    width(now.source),
                                    shape_.head_dim,
                                    kv_layer(now.layer),
                                    static_cast<const float*>(now.weight),
                                    buffer<T>(now.target),
                                    width(now.target)};
      slipstream::attend(plans_[static_cast<size_t>(now.attention)], layer, tile, scratch(thread));
      return;
    }
    case Op::best:
      argmax(buffer<float>(now.source), width(now.source), shape_.num_ids, step_.best_ids, step_.is_sound, first, last);
      return;
    case Op::route: pairs_.choose(buffer<float>(now.source), width(now.source), first, last); return;
    case Op::permute: {
      const int64_t bytes = program_.rows[now.source].bytes;
      pairs_.gather(buffer<std::byte>(now.source), bytes, bytes, buffer<std::byte>(now.target), first, last);
      return;
    }
    case Op::experts: products_.run_tile(tile, scratch(thread)); return;
    case Op::combine:
      pairs_.combine(buffer<float>(now.source), width(now.source), buffer<float>(now.target), width(now.target),
                     now.epilogue == Epilogue::add_residual, first, last);
      return;
    case Op::gather: return;
  }
}

}  // namespace

bool samples_last_rows(const Step& step) {
  return step.num_samples < step.num_tokens &&
         are_last_rows(step.sample_rows, step.num_samples, step.query_starts, step.num_seqs);
}

std::unique_ptr<Model> make_model(const ModelShape& shape) {
  if (shape.type == Scalar::f32) return std::make_unique<TypedModel<float>>(shape);
  return std::make_unique<TypedModel<Bf16>>(shape);
}

}  // namespace slipstream
