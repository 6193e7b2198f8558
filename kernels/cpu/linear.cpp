// Products cut into tiles: some rows times some panels.

#include "linear.hpp"

#include <type_traits>

#include "linear_expand.hpp"
#include "linear_fetch.hpp"
#include "linear_kernels.hpp"
#include "linear_layout.hpp"
#include "linear_store.hpp"

namespace slipstream {

using namespace linear;

namespace {

// A tile's rows stay in the second-level cache beside a panel and the one that is being fetched.
constexpr int kMostRows = 132;
constexpr int kLeastRows = 48;
constexpr int64_t kRowsBytes = 256 * 1024;
// Longer panels are multiplied in blocks of this size, for the same reason.
constexpr int kBlockWordSteps = 1024;
// Codes are expanded in blocks of about this many inputs: short ones, so that memory is not idle for long while a
// thread expands, and long enough that adding their sums up costs little.
constexpr int kExpandedInputs = 128;
// Without instructions for bf16, words of two numbers cost a third of the speed. So where there are many rows, they are
// taken apart first, this many inputs at a time; what follows makes the same chains of multiply-adds.
constexpr int kApartInputs = 256;
#if defined(__AVX512BF16__)
constexpr int kLeastRowsApart = 1 << 30;
#else
constexpr int kLeastRowsApart = 12;
#endif

// With registers of eight numbers, rows are multiplied with a quarter of a panel at a time. Over the whole length of a
// panel, three of four such passes would leave memory idle, and all but the first would read from the second-level
// cache what the first one has just read. So where rows are few and memory is what takes time, a panel is cut into
// pieces that stay in the first-level cache while all rows are multiplied with them, and the next piece is fetched.
constexpr int kPieceSteps = 32;
#if defined(__AVX512F__)
constexpr int kMostRowsInPieces = 0;
#else
constexpr int kMostRowsInPieces = 36;
#endif

// A tile should take a few microseconds, as far as that leaves tiles enough for all.
constexpr double kTileNs = 3000;
constexpr double kBytesPerNs = 20;
constexpr double kFlopsPerNs = 400;
constexpr int kFewTiles = 8;

struct Tiling {
  int row_blocks;
  int panels;
  int panels_per_tile;

  int tiles_per_row_block() const { return ceil_div(panels, panels_per_tile); }
};

// Even shares: the first `total % parts` parts have one more.
struct Share {
  int begin;
  int count;
};

Share share_of(int total, int parts, int part) {
  const int size = total / parts, more = total % parts;
  return {part * size + (part < more ? part : more), size + (part < more ? 1 : 0)};
}

Tiling tiling_of(const LinearCall& call) {
  const WeightShape& shape = call.weight->shape;
  const int64_t row_bytes = int64_t{shape.inputs} * (call.type == Scalar::f32 ? 4 : 2);
  int64_t rows = kRowsBytes / row_bytes / kMaxRows * kMaxRows;
  rows = rows > kMostRows ? kMostRows : rows < kLeastRows ? kLeastRows : rows;
  Tiling tiling{};
  tiling.row_blocks = static_cast<int>((call.rows + rows - 1) / rows);
  tiling.panels = num_panels(shape);
  const double rows_of_tile = tiling.row_blocks ? static_cast<double>(call.rows) / tiling.row_blocks : 0;
  const double flops_ns = 2.0 * kPanelOutputs * shape.inputs * rows_of_tile / kFlopsPerNs;
  const double bytes_ns = static_cast<double>(panel_bytes(shape)) / kBytesPerNs;
  const double panel_ns = flops_ns > bytes_ns ? flops_ns : bytes_ns;
  const int wanted = static_cast<int>(kTileNs / panel_ns) + 1;
  const int most = tiling.panels / kFewTiles > 1 ? tiling.panels / kFewTiles : 1;
  tiling.panels_per_tile = wanted < most ? wanted : most;
  return tiling;
}

// Where a thread keeps what it needs in between.
template <class T>
struct Workspace {
  explicit Workspace(std::byte* scratch)
      : words(reinterpret_cast<T*>(scratch)),
        apart(reinterpret_cast<float*>(scratch)),
        sums(apart + kMostWords * kPanelOutputs),
        rows(sums + kMostRows * kPanelOutputs),
        chains(apart) {
    constexpr int kNumbers = kMostWords * kPanelOutputs + kMostRows * kPanelOutputs + kMaxRows * kApartInputs;
    static_assert(kNumbers * sizeof(float) <= kLinearScratchBytes);
    static_assert(kMostRowsInPieces <= kMostWords && kMostRowsInPieces <= kLeastRows);
  }

  static constexpr int kMostWords = kMostGroupInputs > kApartInputs ? kMostGroupInputs : kApartInputs;

  T* words;       // [kMostGroupInputs, 64], or
  float* apart;   // [kApartInputs, 64]
  float* sums;    // [rows of the tile, 64]
  float* rows;    // [kMaxRows, kApartInputs]
  float* chains;  // [kMostRowsInPieces, 64], where `words` are
};

template <class T>
class Tile {
 public:
  Tile(const LinearCall& call, Share rows, std::byte* scratch)
      : call_(call),
        shape_(call.weight->shape),
        rows_(rows),
        space_(scratch),
        row_groups_(ceil_div(rows.count, kMaxRows)) {}

  // `next` is where this thread is likely to go on.
  void run_panel(int panel, const std::byte* next) const {
    const std::byte* data = call_.weight->data + panel * panel_bytes(shape_);
    if (has_codes(shape_.kind)) {
      run_codes(panel, data, next);
    } else if (std::is_same_v<T, Bf16> && rows_.count >= kLeastRowsApart && shape_.inputs <= kMostInputsApart) {
      run_apart(panel, data);
    } else if (rows_.count > 1 && rows_.count <= kMostRowsInPieces) {
      run_pieces(panel, data, next);
    } else {
      run_words(panel, data, next);
    }
  }

 private:
  void run_words(int panel, const std::byte* data, const std::byte* next) const {
    constexpr int kBlockInputs = kBlockWordSteps * Steps<T>::kInputs;
    for (int begin = 0; begin < shape_.inputs; begin += kBlockInputs) {
      const bool last = shape_.inputs - begin <= kBlockInputs;
      const int inputs = last ? shape_.inputs - begin : kBlockInputs;
      const Block block{data, inputs, nullptr, 0, 0, begin == 0};
      const int64_t bytes = int64_t{ceil_div(inputs, Steps<T>::kInputs)} * kStepBytes;
      data += bytes;
      multiply(panel, begin, block, last, last ? next : data, bytes, nullptr);
    }
  }

  // The same chains, with all rows piece by piece.
  void run_pieces(int panel, const std::byte* data, const std::byte* next) const {
    constexpr int kInputs = Steps<T>::kInputs, kBlockInputs = kBlockWordSteps * kInputs;
    constexpr int kPieceInputs = kPieceSteps * kInputs;
    for (int begin = 0; begin < shape_.inputs; begin += kBlockInputs) {
      const int end = shape_.inputs - begin < kBlockInputs ? shape_.inputs : begin + kBlockInputs;
      float* sums = begin == 0 ? space_.sums : space_.chains;
      for (int piece = begin; piece < end; piece += kPieceInputs) {
        const int inputs = end - piece < kPieceInputs ? end - piece : kPieceInputs, steps = ceil_div(inputs, kInputs);
        const Block block{data, inputs, nullptr, 0, 0, piece == begin, piece > begin};
        const int64_t bytes = int64_t{steps} * kStepBytes;
        data += bytes;
        const std::byte* ahead = piece + inputs == shape_.inputs ? next : data;
        multiply_rows(piece, block, Fetch(ahead, bytes / kLineBytes, steps, num_passes()), sums);
      }
      if (begin > 0) add_chains();
    }
    finish_rows<T>(call_, panel, rows_.begin, rows_.count, space_.sums, nullptr);
  }

  void multiply_rows(int begin, const Block& block, Fetch fetch, float* sums) const {
    const T* x = static_cast<const T*>(call_.x) + rows_.begin * call_.x_stride + begin;
    for (int group = 0; group < row_groups_; ++group) {
      const Share rows = share_of(rows_.count, row_groups_, group);
      multiply_piece<T>(x + rows.begin * call_.x_stride, call_.x_stride, rows.count, block, fetch,
                        sums + rows.begin * kPanelOutputs);
    }
  }

  void add_chains() const {
    for (int i = 0; i < rows_.count * kPanelOutputs; i += simd::kLanes) {
      simd::store(space_.sums + i, simd::add(simd::load(space_.chains + i), simd::load(space_.sums + i)));
    }
  }

  // As `run_words` with a single block, but with words and rows in float32.
  void run_apart(int panel, const std::byte* data) const {
    for (int begin = 0; begin < shape_.inputs; begin += kApartInputs) {
      const bool last = shape_.inputs - begin <= kApartInputs;
      const int inputs = last ? shape_.inputs - begin : kApartInputs;
      take_apart(data, ceil_div(inputs, 2), space_.apart);
      data += ceil_div(inputs, 2) * kStepBytes;
      const Block block{reinterpret_cast<const std::byte*>(space_.apart), inputs, nullptr, 0, 0, begin == 0, begin > 0};
      for (int group = 0; group < row_groups_; ++group) {
        const Share rows = share_of(rows_.count, row_groups_, group);
        const int first_row = rows_.begin + rows.begin;
        float* sums = space_.sums + rows.begin * kPanelOutputs;
        for (int row = 0; row < rows.count; ++row) {
          const auto* x = static_cast<const Bf16*>(call_.x) + (first_row + row) * call_.x_stride + begin;
          widen(x, inputs, space_.rows + row * kApartInputs);
        }
        multiply_block<float>(space_.rows, kApartInputs, rows.count, block, {nullptr, 0}, sums);
        if (last) finish_rows<T>(call_, panel, first_row, rows.count, sums, nullptr);
      }
    }
  }

  void run_codes(int panel, const std::byte* data, const std::byte* next) const {
    const bool grouped = shape_.group != 0;
    const int groups = grouped && shape_.group < kExpandedInputs ? kExpandedInputs / shape_.group : 1;
    const int block_inputs = grouped ? groups * shape_.group : kExpandedInputs;
    const int64_t header = group_header_bytes(shape_.kind);
    const auto* scales = grouped ? nullptr : reinterpret_cast<const float*>(data);
    for (int begin = 0; begin < shape_.inputs; begin += block_inputs) {
      const bool last = shape_.inputs - begin <= block_inputs;
      const int inputs = last ? shape_.inputs - begin : block_inputs;
      const std::byte* from = data + (grouped ? begin / shape_.group * group_bytes(shape_) : 0);
      expand_block(from, grouped ? 0 : code_bytes(shape_.kind, begin), inputs);
      const Block block{reinterpret_cast<const std::byte*>(space_.words),
                        inputs,
                        grouped ? from : nullptr,
                        group_bytes(shape_),
                        shape_.group,
                        begin == 0};
      const int64_t bytes = code_bytes(shape_.kind, inputs) + (grouped ? ceil_div(inputs, shape_.group) * header : 0);
      const std::byte* following = from + (grouped ? bytes : header + code_bytes(shape_.kind, begin + block_inputs));
      multiply(panel, begin, block, last, last ? next : following, bytes, scales);
    }
  }

  // `from` is a group's begin; with one group for all, the block's codes are `offset` bytes into it.
  void expand_block(const std::byte* from, int64_t offset, int inputs) const {
    const int group = shape_.group != 0 ? shape_.group : inputs;
    T* words = space_.words;
    for (int left = inputs; left > 0; left -= group) {
      const std::byte* codes = from + group_header_bytes(shape_.kind) + offset;
      const int pairs = ceil_div(left < group ? left : group, 2);
      expand(shape_.kind, codes, from + kScaleBytes, pairs, words);
      words += pairs * 2 * kPanelOutputs;
      from += group_bytes(shape_);
    }
  }

  // All rows times the block, which begins at input `begin`; after the last block of a panel, its outputs are finished.
  // Meanwhile, `ahead_bytes` from `ahead` on are fetched.
  void multiply(int panel, int begin, const Block& block, bool last, const std::byte* ahead, int64_t ahead_bytes,
                const float* scales) const {
    const T* x = static_cast<const T*>(call_.x) + begin;
    const int steps = ceil_div(block.inputs, Steps<T>::kInputs);
    const int64_t lines = ahead_bytes / kLineBytes, all_steps = int64_t{steps} * row_groups_;
    const int rate = lines <= all_steps ? 1 : lines <= 2 * all_steps ? 2 : 3;
    int64_t lines_left = lines;
    for (int group = 0; group < row_groups_; ++group) {
      const Share rows = share_of(rows_.count, row_groups_, group);
      const int first_row = rows_.begin + rows.begin;
      const bool kept = !(last && block.first);
      float* sums = space_.sums + (kept ? rows.begin * kPanelOutputs : 0);
      const PassAhead pass{ahead, lines_left > 0 ? rate : 0};
      multiply_block<T>(x + first_row * call_.x_stride, call_.x_stride, rows.count, block, pass, sums);
      const int64_t asked = int64_t{kLinesAhead[pass.rate]} * steps;
      ahead += asked * kLineBytes;
      lines_left -= asked;
      if (last) finish_rows<T>(call_, panel, first_row, rows.count, sums, scales);
    }
  }

  // Over a piece, by all rows. No group of rows has more than the first.
  int num_passes() const {
    return row_groups_ * kernel_for<T>(share_of(rows_.count, row_groups_, 0).count).passes_of_panel();
  }

  static constexpr int kMostInputsApart = kBlockWordSteps * Steps<Bf16>::kInputs;  // one block of `run_words`

  const LinearCall& call_;
  const WeightShape& shape_;
  Share rows_;
  Workspace<T> space_;
  int row_groups_;
};

template <class T>
void run_typed(const LinearCall& call, int tile, std::byte* scratch) {
  const Tiling tiling = tiling_of(call);
  const int per_row_block = tiling.tiles_per_row_block();
  const Tile<T> rows(call, share_of(call.rows, tiling.row_blocks, tile / per_row_block), scratch);
  const Share panels = share_of(tiling.panels, per_row_block, tile % per_row_block);
  const int64_t bytes = panel_bytes(call.weight->shape);
  for (int panel = panels.begin; panel < panels.begin + panels.count; ++panel) {
    const bool last = panel + 1 == panels.begin + panels.count;
    const int next = last ? panels.begin + panels.count * call.tiles_ahead : panel + 1;
    const bool is_after = call.after != nullptr && next >= tiling.panels;
    rows.run_panel(panel, is_after ? call.after + (next - tiling.panels) * bytes : call.weight->data + next * bytes);
  }
}

}  // namespace

int num_tiles(const LinearCall& call) {
  const Tiling tiling = tiling_of(call);
  return tiling.row_blocks * tiling.tiles_per_row_block();
}

void run_tile(const LinearCall& call, int tile, std::byte* scratch) {
  if (call.type == Scalar::f32) {
    run_typed<float>(call, tile, scratch);
  } else {
    run_typed<Bf16>(call, tile, scratch);
  }
}

}  // namespace slipstream
