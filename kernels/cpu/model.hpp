// The layer loop of the Llama family on one rank: embedding, layers, scores, best token. Reads weights that somebody else
// holds, writes keys and values into pages, and knows nothing of sequences beyond one step.
//
// A step is a row of *stages*. Where another party must act in between (other ranks add up their parts, pages leave for
// another worker), the caller runs it in pieces; otherwise in one:
//
//     embed | keys_values 0 | attend 0 | feed_forward 0 | keys_values 1 | ... | feed_forward L-1 | logits | best tokens
//     0       1               2          3                4                     3 L                3 L + 1  3 L + 2
#pragma once

#include <cstdint>
#include <memory>

#include "attention.hpp"
#include "linear.hpp"

namespace slipstream {

// What the caller describes. The structs are part of the C interface: `interface.py` mirrors them.

struct ModelShape {
  Scalar type;  // of weights, activations and unquantised keys and values: f32 or bf16
  int32_t num_layers;
  int32_t hidden_size;
  int32_t intermediate_size;  // this and what follows: this rank's share
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t page_tokens;
  KvFormat kv_format;
  int32_t first_id;     // of the rank's run of the vocabulary
  int32_t vocab_share;  // rows of the embedding and outputs of lm_head, padding included
  int32_t num_ids;      // without the padding
  int32_t is_sharded;   // attend and feed_forward leave their part in `partial` instead of adding it to x
  float norm_eps;
  float attention_scale;
  float rotary_scale;
};

struct LinearWeights {
  PackedWeight weight;
  const float* bias;  // [outputs] or none
};

struct LayerWeights {
  const void* attention_norm;  // [hidden] of the model's type
  LinearWeights qkv;           // query heads, key heads, value heads
  const void* qk_norm;         // [heads + kv_heads, head_dim] of the model's type, or none
  LinearWeights output;
  const void* mlp_norm;   // [hidden]
  LinearWeights gate_up;  // paired
  LinearWeights down;
  int32_t window;  // keys that a query sees; 0: all
};

struct ModelWeights {
  const void* embedding;  // [vocab_share, hidden] of the model's type
  const LayerWeights* layers;
  const void* final_norm;
  LinearWeights lm_head;
  const float* inv_freq;  // [head_dim / 2]
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
  const int32_t* sample_rows;  // [samples] rows of x whose scores are wanted
  std::byte* kv;               // [layers, pages, kv_heads, head run]
  int64_t num_pages;
  float* x;           // [tokens, hidden] the residual stream
  float* partial;     // [tokens, hidden] of a sharded model
  float* logits;      // [samples, vocab_share]
  int32_t* best_ids;  // [samples], numbers within the share
  uint8_t* is_sound;  // [samples]
  // Only the scores are needed: behind the last layer's keys and values, only `sample_rows` are computed, and x
  // is left as it was there. Without effect in a sharded model.
  int32_t only_samples;
};

// The kinds of phases that times are kept by.
enum class Op : int32_t {
  embed,
  rotary,
  attention_norm,
  qkv,
  write,
  attend,
  output,
  mlp_norm,
  gate_up,
  down,
  final_norm,
  logits,
  best,
};
constexpr int kNumOps = 13;

class Model {
 public:
  virtual ~Model() = default;

  // Runs stages `first` .. `last` (excluded) on the process's team.
  virtual void run(const Step& step, int first, int last) = 0;

  // Nanoseconds and phases by Op since the counting began; counting costs a look at the clock each phase.
  bool is_timed = false;
  int64_t op_ns[kNumOps] = {};
  int64_t op_calls[kNumOps] = {};
};

// Copies shape and descriptions; the weights themselves must outlive the model.
std::unique_ptr<Model> make_model(const ModelShape& shape, const ModelWeights& weights);

}  // namespace slipstream
