#include "model.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "clock.hpp"
#include "elementwise.hpp"
#include "team.hpp"

namespace slipstream {
namespace {

// Numbers that a tile of an elementwise phase reads: a few microseconds of work.
constexpr int kTileNumbers = 16384;
constexpr int kStagesOfLayer = 3;

// Memory that a step writes: grows to what the largest step needs, and its contents do not matter in between.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  T* data() const { return data_; }

  void reserve(size_t size) {
    if (size <= size_) return;
    std::free(data_);
    const size_t bytes = (size * sizeof(T) + 63) / 64 * 64;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) std::abort();
    size_ = size;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// One part of a step between two points where all threads meet.
struct Phase {
  Op op;
  int layer;
};

template <typename T>
class TypedModel final : public Model, private Work {
 public:
  TypedModel(const ModelShape& shape, const ModelWeights& weights);

  void run(const Step& step, int first, int last) override;

 private:
  int begin_phase(int phase, int thread) override;
  void run_tile(int phase, int tile, int thread) override;

  void add_stage(int stage);
  void make_room();
  void count_time(int phase);
  int begin(const Phase& phase);
  int begin_rows(int rows, int numbers_of_row);
  int begin_linear(const LinearWeights& weights, const T* x, int rows, Epilogue epilogue, void* y, int y_stride);
  AttentionPlan& plan_of(int layer) {
    return is_short(layer) ? short_plan_ : plans_[static_cast<size_t>(plan_of_layer_[layer])];
  }
  void gather_samples();
  // Whether, behind its keys and values, the layer is computed for the sampled rows alone.
  bool is_short(int layer) const { return has_short_layer_ && layer + 1 == shape_.num_layers; }
  int rows_behind_attention(int layer) const { return is_short(layer) ? step_.num_samples : step_.num_tokens; }
  float* x_behind_attention(int layer) const { return is_short(layer) ? sampled_x_.data() : step_.x; }
  std::byte* kv_layer(int layer) const { return step_.kv + layer * step_.num_pages * page_bytes_; }
  std::byte* scratch(int thread) const { return scratch_.data() + thread * scratch_bytes_; }

  const ModelShape shape_;
  ModelWeights weights_;
  std::vector<LayerWeights> layers_;
  std::vector<float> inv_freq_;
  std::vector<AttentionPlan> plans_;  // one a window
  AttentionPlan short_plan_;          // of the last layer, if only the sampled rows go on there
  std::vector<int> plan_of_layer_;
  KvShape kv_shape_;
  int64_t page_bytes_;
  int qkv_size_, attended_size_;

  Buffer<T> normed_, qkv_, attended_, inner_, sampled_, sampled_attended_;
  Buffer<float> cosines_, sines_, sampled_x_;
  Buffer<std::byte> scratch_;
  int64_t scratch_bytes_;

  // The step at hand.
  Step step_ = {};
  bool has_short_layer_ = false;
  std::vector<Phase> phases_;
  LinearCall call_ = {};
  int rows_ = 0, rows_of_tile_ = 1;
  int64_t phase_began_ns_ = 0;
};

KvShape kv_shape_of(const ModelShape& shape) {
  return {shape.num_kv_heads, shape.head_dim, shape.page_tokens, shape.kv_format};
}

template <typename T>
TypedModel<T>::TypedModel(const ModelShape& shape, const ModelWeights& weights)
    : shape_(shape),
      weights_(weights),
      layers_(weights.layers, weights.layers + shape.num_layers),
      inv_freq_(weights.inv_freq, weights.inv_freq + shape.head_dim / 2),
      short_plan_(AttentionShape{kv_shape_of(shape), shape.num_heads, layers_.back().window, shape.attention_scale}),
      kv_shape_(kv_shape_of(shape)),
      page_bytes_(static_cast<int64_t>(shape.num_kv_heads * kv_shape_.head_bytes(sizeof(T)))),
      qkv_size_((shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim),
      attended_size_(shape.num_heads * shape.head_dim) {
  std::vector<int> windows;
  size_t attention_bytes = 0;
  for (const LayerWeights& layer : layers_) {
    const auto known = std::find(windows.begin(), windows.end(), layer.window);
    plan_of_layer_.push_back(static_cast<int>(known - windows.begin()));
    if (known != windows.end()) continue;
    windows.push_back(layer.window);
    const AttentionShape attention{kv_shape_, shape.num_heads, layer.window, shape.attention_scale};
    plans_.emplace_back(attention);
    attention_bytes = std::max(attention_bytes, attention_scratch_bytes(attention));
  }
  scratch_bytes_ = (std::max<int64_t>(kLinearScratchBytes, attention_bytes) + 63) / 64 * 64;
}

template <typename T>
void TypedModel<T>::run(const Step& step, int first, int last) {
  step_ = step;
  has_short_layer_ = step.only_samples && !shape_.is_sharded && step.num_samples < step.num_tokens &&
                     are_last_rows(step.sample_rows, step.num_samples, step.query_starts, step.num_seqs);
  make_room();
  phases_.clear();
  for (int stage = first; stage < last; ++stage) add_stage(stage);
  if (first == 0) {
    const AttentionBatch batch{step.num_seqs, step.query_starts, step.kv_lens, step.page_table, step.page_table_stride};
    for (AttentionPlan& plan : plans_) plan.build(batch);
    if (has_short_layer_) short_plan_.build(batch, step.sample_rows, step.num_samples);
  }
  run_together(*this);
}

template <typename T>
void TypedModel<T>::add_stage(int stage) {
  if (stage == 0) {
    phases_.push_back({Op::embed, 0});
    phases_.push_back({Op::rotary, 0});
    return;
  }
  const int layer = (stage - 1) / kStagesOfLayer, part = (stage - 1) % kStagesOfLayer;
  if (layer >= shape_.num_layers) {
    if (part == 0) phases_.push_back({Op::final_norm, 0});
    phases_.push_back({part == 0 ? Op::logits : Op::best, 0});
  } else if (part == 0) {
    for (Op op : {Op::attention_norm, Op::qkv, Op::write}) phases_.push_back({op, layer});
  } else if (part == 1) {
    for (Op op : {Op::attend, Op::output}) phases_.push_back({op, layer});
  } else {
    for (Op op : {Op::mlp_norm, Op::gate_up, Op::down}) phases_.push_back({op, layer});
  }
}

template <typename T>
void TypedModel<T>::make_room() {
  const auto tokens = static_cast<size_t>(step_.num_tokens);
  normed_.reserve(tokens * shape_.hidden_size);
  qkv_.reserve(tokens * qkv_size_);
  attended_.reserve(tokens * attended_size_);
  inner_.reserve(tokens * shape_.intermediate_size);
  const auto samples = static_cast<size_t>(step_.num_samples);
  sampled_.reserve(samples * shape_.hidden_size);
  sampled_x_.reserve(samples * shape_.hidden_size);
  sampled_attended_.reserve(samples * attended_size_);
  cosines_.reserve(tokens * shape_.head_dim / 2);
  sines_.reserve(tokens * shape_.head_dim / 2);
}

template <typename T>
void TypedModel<T>::count_time(int phase) {
  const int64_t now = now_ns();
  if (phase > 0) {
    const int op = static_cast<int>(phases_[static_cast<size_t>(phase - 1)].op);
    op_ns[op] += now - phase_began_ns_;
    op_calls[op] += 1;
  }
  phase_began_ns_ = now;
}

template <typename T>
int TypedModel<T>::begin_phase(int phase, int) {
  // Here, where the number of threads is that of this work.
  if (phase == 0) scratch_.reserve(static_cast<size_t>(num_threads() * scratch_bytes_));
  if (is_timed) count_time(phase);
  if (phase == static_cast<int>(phases_.size())) return kWorkEnds;
  return begin(phases_[static_cast<size_t>(phase)]);
}

// Few rows, so this is done by the thread that begins the phase.
template <typename T>
void TypedModel<T>::gather_samples() {
  for (int i = 0; i < step_.num_samples; ++i) {
    const int64_t row = step_.sample_rows[i];
    std::copy_n(step_.x + row * shape_.hidden_size, shape_.hidden_size, sampled_x_.data() + i * shape_.hidden_size);
    std::copy_n(attended_.data() + row * attended_size_, attended_size_, sampled_attended_.data() + i * attended_size_);
  }
}

template <typename T>
int TypedModel<T>::begin(const Phase& phase) {
  const LayerWeights& layer = layers_[static_cast<size_t>(phase.layer)];
  const int tokens = step_.num_tokens, samples = step_.num_samples, hidden = shape_.hidden_size;
  const int rows = rows_behind_attention(phase.layer);
  const Epilogue adds = shape_.is_sharded ? Epilogue::store_f32 : Epilogue::add_residual;
  float* const sum = shape_.is_sharded ? step_.partial : x_behind_attention(phase.layer);
  switch (phase.op) {
    case Op::embed:
    case Op::attention_norm: return begin_rows(tokens, hidden);
    case Op::rotary: return begin_rows(tokens, 8 * shape_.head_dim);  // a sine costs more than a product
    case Op::qkv: return begin_linear(layer.qkv, normed_.data(), tokens, Epilogue::store, qkv_.data(), qkv_size_);
    case Op::write: return begin_rows(tokens, qkv_size_);
    case Op::attend: return plan_of(phase.layer).num_tiles();
    case Op::output:
      if (!is_short(phase.layer)) return begin_linear(layer.output, attended_.data(), rows, adds, sum, hidden);
      gather_samples();
      return begin_linear(layer.output, sampled_attended_.data(), rows, adds, sum, hidden);
    case Op::mlp_norm: return begin_rows(rows, hidden);
    case Op::gate_up:
      return begin_linear(layer.gate_up, normed_.data(), rows, Epilogue::silu_mul, inner_.data(),
                          shape_.intermediate_size);
    case Op::down: return begin_linear(layer.down, inner_.data(), rows, adds, sum, hidden);
    case Op::final_norm: return begin_rows(samples, hidden);
    case Op::logits:
      return begin_linear(weights_.lm_head, sampled_.data(), samples, Epilogue::store_f32, step_.logits,
                          shape_.vocab_share);
    case Op::best: return shape_.num_ids == 0 ? 0 : begin_rows(samples, shape_.num_ids);
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
int TypedModel<T>::begin_linear(const LinearWeights& weights, const T* x, int rows, Epilogue epilogue, void* y,
                                int y_stride) {
  const int inputs = weights.weight.shape.inputs;
  if (weights.weight.shape.outputs == 0) return 0;  // a rank without a share of the vocabulary
  call_ = {&weights.weight, weights.bias, shape_.type, x, inputs, rows, epilogue, y, y_stride, threads_of_queue()};
  return num_tiles(call_);
}

template <typename T>
void TypedModel<T>::run_tile(int phase, int tile, int thread) {
  const auto [op, index] = phases_[static_cast<size_t>(phase)];
  const LayerWeights& layer = layers_[static_cast<size_t>(index)];
  const int hidden = shape_.hidden_size, half_dim = shape_.head_dim / 2;
  const int first = tile * rows_of_tile_, last = std::min(first + rows_of_tile_, rows_);
  switch (op) {
    case Op::embed:
      embed(static_cast<const T*>(weights_.embedding), step_.token_ids, shape_.first_id, shape_.vocab_share, step_.x,
            hidden, first, last);
      return;
    case Op::rotary:
      rotary_table(step_.positions, inv_freq_.data(), half_dim, shape_.rotary_scale, cosines_.data(), sines_.data(),
                   first, last);
      return;
    case Op::attention_norm:
      rms_norm(step_.x, static_cast<const T*>(layer.attention_norm), normed_.data(), hidden, shape_.norm_eps, first,
               last);
      return;
    case Op::mlp_norm:
      rms_norm(x_behind_attention(index), static_cast<const T*>(layer.mlp_norm), normed_.data(), hidden,
               shape_.norm_eps, first, last);
      return;
    case Op::write: {
      const KvWrite<T> write{kv_shape_,       shape_.num_heads, qkv_.data(),
                             cosines_.data(), sines_.data(),    static_cast<const T*>(layer.qk_norm),
                             shape_.norm_eps, step_.slots,      kv_layer(index)};
      write_keys_values(write, first, last);
      return;
    }
    case Op::attend:
      slipstream::attend(plan_of(index), qkv_.data(), qkv_size_, kv_layer(index), attended_.data(), attended_size_,
                         tile, scratch(thread));
      return;
    case Op::final_norm:
      if (has_short_layer_) {
        rms_norm(sampled_x_.data(), static_cast<const T*>(weights_.final_norm), sampled_.data(), hidden,
                 shape_.norm_eps, first, last);
      } else {
        rms_norm_gathered(step_.x, step_.sample_rows, static_cast<const T*>(weights_.final_norm), sampled_.data(),
                          hidden, shape_.norm_eps, first, last);
      }
      return;
    case Op::best:
      argmax(step_.logits, shape_.vocab_share, shape_.num_ids, step_.best_ids, step_.is_sound, first, last);
      return;
    case Op::qkv:
    case Op::output:
    case Op::gate_up:
    case Op::down:
    case Op::logits: slipstream::run_tile(call_, tile, scratch(thread)); return;
  }
}

}  // namespace

std::unique_ptr<Model> make_model(const ModelShape& shape, const ModelWeights& weights) {
  if (shape.type == Scalar::f32) return std::make_unique<TypedModel<float>>(shape, weights);
  return std::make_unique<TypedModel<Bf16>>(shape, weights);
}

}  // namespace slipstream
