// Runs programs: the steps of a model on one rank as a list of instructions over numbered buffers. Which instructions
// there are follows from the calls of `Ops` that a model makes (`kernels/cpu/native_ops.py`). Weights and buffers belong
// to the caller; keys and values are written into pages; nothing is kept of a sequence beyond one step.
//
// One call runs a range of instructions without the threads going to sleep in between. Where another party must act
// (other ranks add up their parts, pages leave for another worker), the caller cuts the range there.
#pragma once

#include <cstdint>
#include <memory>

#include "attention.hpp"
#include "experts.hpp"
#include "linear.hpp"

namespace slipstream {

// The structs are part of the C interface: `c_interface.py` mirrors them.

// The attention that instructions refer to by its number.
struct AttentionKind {
  int32_t window;      // keys that a query sees; 0: all
  int32_t on_samples;  // only the sampled rows are computed, which must be the last rows of sequences
  int32_t group;       // of pages
};

// Rotary angles that `write` refers to by their number.
struct RotaryKind {
  const float* inv_freq;  // [head_dim / 2]
  float scale;            // of cosines and sines
};

// What all programs of a model share. Heads and vocabulary: this rank's share.
struct ModelShape {
  Scalar type;  // of weights, activations and unquantised keys and values: f32 or bf16
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t page_tokens;
  KvFormat kv_format;
  int32_t first_id;   // of the rank's run of the vocabulary
  int32_t num_ids;    // in that run
  int32_t num_kinds;  // of attention
  const AttentionKind* kinds;
  int32_t num_rotaries;
  const RotaryKind* rotaries;
  float attention_scale;
  float attention_softcap;  // of scores; 0: none
};

enum class Op : int32_t {
  embed = 0,   // target f32 [tokens, dim] = rows of `weight` times `scale`, zeros for ids of other ranks
  rotary = 1,  // the angles `rotary` of the step's positions, for all `write` behind it
  norm = 2,    // target [rows, dim] = RMS norm of source f32, with `weight` [dim] float32
  linear = 3,  // target = epilogue(source W^T + bias)
  write = 4,   // norms (`weight`: [heads + kv_heads, head_dim] float32 or none) and rotates source, the qkv of all
               // tokens, by the angles `rotary`, in place, and stores keys and values in the pages of `layer`
  attend = 5,  // target [tokens, heads * head_dim] from the queries of source and the pages of `layer`, with the sinks
               // `weight` [heads] float32 or none
  gather = 6,  // target [samples, dim] = the sampled rows of source
  best = 7,    // best_ids and is_sound of source, the f32 scores of the sampled rows
  add_norm = 8,  // like norm, added to target f32
  // A mixture of experts; the choices of `route` hold until the next one.
  route = 9,     // rows choose experts by source, f32 [rows, experts]
  permute = 10,  // target [pairs, dim] = rows of source, by expert
  experts = 11,  // target [pairs, out] = epilogue(source W^T + bias), with the weight of each pair's expert
  combine = 12,  // target [rows, dim] f32 = (or +=: add_residual) weighted sums of source, f32 [pairs, dim]
};

struct Instruction {
  Op op;
  int32_t source;      // number of a buffer
  int32_t target;      // number of a buffer
  int32_t on_samples;  // the rows are those that are sampled; otherwise all tokens
  int32_t gathers;     // norm: row i is read from source row sample_rows[i]
  Epilogue epilogue;   // linear
  int32_t layer;       // write, attend: of the pool
  int32_t attention;   // attend: number of an AttentionKind
  int32_t group;       // write: of pages
  int32_t rotary;      // rotary, write: number of a RotaryKind
  float eps;           // norm, add_norm, write
  float scale;         // embed
  const void* weight;  // embed, norm, add_norm, write, attend
  PackedWeight packed;
  const float* bias;  // linear: [outputs] or none; experts: [own experts, outputs] or none
  // Of mixtures of experts.
  Routing routing;       // route
  int32_t moe_layer;     // permute: the number of the layer among those that have experts
  int64_t expert_bytes;  // experts: from one weight to the next; `packed` is that of the first own expert
  float alpha, limit;    // clamped_swiglu
};

// One row of a buffer.
struct BufferRow {
  int32_t numbers;
  int32_t bytes;
};

struct Program {
  const Instruction* instructions;
  const BufferRow* rows;  // by number of the buffer
  int64_t* ns;            // by instruction: added to, if there; this costs a look at the clock each
};

// Where a further group of pages has keys and values, as in `Step`.
struct StepGroup {
  const int32_t* slots;
  const int32_t* page_table;
  int64_t page_table_stride;
};

struct Step {
  int32_t num_tokens;
  int32_t num_seqs;
  int32_t num_samples;
  const int32_t* token_ids;     // [tokens]
  const int32_t* positions;     // [tokens]
  const int32_t* slots;         // [tokens] page * page_tokens + offset
  const int32_t* query_starts;  // [seqs + 1]
  const int32_t* kv_lens;       // [seqs]
  const int32_t* page_table;    // [seqs, stride]
  int64_t page_table_stride;
  const int32_t* sample_rows;  // [samples] rows of the step whose scores are wanted
  std::byte* kv;               // [layers, pages, kv_heads, head run]
  int64_t num_pages;
  std::byte* const* buffers;     // by number, aligned to 64 bytes
  int32_t* best_ids;             // [samples], numbers within the share
  uint8_t* is_sound;             // [samples]
  const StepGroup* more_groups;  // those behind the first
  int64_t* expert_rows;          // [layers with experts, experts] added to: rows that chose each; or none
};

// Whether fewer rows are sampled than there are, and all of them are last rows of sequences: then what comes behind the
// last keys and values need only be computed for these.
bool samples_last_rows(const Step& step);

class Model {
 public:
  virtual ~Model() = default;

  // Runs instructions `first` .. `last` (excluded) on the process's team. A step begins with instruction 0.
  virtual void run(const Program& program, const Step& step, int first, int last) = 0;
};

std::unique_ptr<Model> make_model(const ModelShape& shape);

}  // namespace slipstream
