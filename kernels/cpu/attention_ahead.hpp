// Bringing the next block's keys and values near while a block is worked on, evenly: the memory has a limited number of
// requests under way, and a burst of them would hold up everything behind it.
#pragma once

#include "vector.hpp"

namespace slipstream {

class Ahead {
 public:
  // `rows` are all rows of the block that comes, of `row_bytes` each.
  void begin(const void* const* rows, int num_rows, size_t row_bytes) {
    next_ = rows;
    end_ = rows + num_rows;
    row_bytes_ = row_bytes;
  }

  // Asks for the next row, if there is one.
  void fetch() {
    if (next_ == end_) return;
    const char* row = static_cast<const char*>(*next_++);
    for (size_t byte = 0; byte < row_bytes_; byte += 64) _mm_prefetch(row + byte, _MM_HINT_T0);
  }

 private:
  const void* const* next_ = nullptr;
  const void* const* end_ = nullptr;
  size_t row_bytes_ = 0;
};

}  // namespace slipstream
