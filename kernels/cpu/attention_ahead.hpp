// Bringing the next block's keys and values near while a block is worked on, evenly: the memory has a limited number of
// requests under way, and a burst of them would hold up everything behind it.
#pragma once

#include "vector.hpp"

namespace slipstream {

// How much is asked for at once: whole rows where registers hold sixteen numbers, cache lines where they hold eight and
// a block takes four times as many squares of keys and twice as many steps.
#if defined(__AVX512F__)
constexpr bool kAsksForRows = true;
constexpr int kAheadOfSquare = 5;  // while kLanes by kLanes words of keys are turned
constexpr int kAheadOfValue = 1;   // while the words of a value are loaded
constexpr int kAheadOfGroup = 0;   // before a few of many rows; all are asked for by then
#else
constexpr bool kAsksForRows = false;
constexpr int kAheadOfSquare = 2;
constexpr int kAheadOfValue = 2;
constexpr int kAheadOfGroup = 8;
#endif
constexpr int kAheadOfStep = 1;  // of a product with few rows

class Ahead {
 public:
  // `rows` are all rows of the block that comes: `num_keys` of `key_bytes` each, then as many of `value_bytes`.
  void begin(const void* const* rows, int num_keys, size_t key_bytes, size_t value_bytes) {
    next_ = rows;
    values_ = rows + num_keys;
    end_ = values_ + num_keys;
    row_bytes_ = key_bytes;
    value_bytes_ = value_bytes;
    byte_ = 0;
  }

  // Asks for the next rows or lines, as far as there are any.
  template <int COUNT>
  void fetch() {
#pragma GCC unroll 8
    for (int i = 0; i < COUNT; ++i) {
      if (next_ == end_) return;
      const char* row = static_cast<const char*>(*next_);
      do {
        _mm_prefetch(row + byte_, _MM_HINT_T0);
        byte_ += kLineBytes;
      } while (kAsksForRows && byte_ < row_bytes_);
      if (byte_ < row_bytes_) continue;
      byte_ = 0;
      if (++next_ == values_) row_bytes_ = value_bytes_;
    }
  }

 private:
  static constexpr size_t kLineBytes = 64;

  const void* const* next_ = nullptr;
  const void* const* values_ = nullptr;
  const void* const* end_ = nullptr;
  size_t row_bytes_ = 0;  // of the next row
  size_t value_bytes_ = 0;
  size_t byte_ = 0;  // of the next row, that comes next
};

// Where arithmetic is what takes time, its steps ask for nothing.
struct NothingAhead {
  template <int COUNT>
  void fetch() {}
};

}  // namespace slipstream
