// Memory that a call writes: grows to what the largest call needs, and its contents do not matter in between.
#pragma once

#include <cstddef>
#include <cstdlib>

namespace slipstream {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  // Aligned to 64 bytes.
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

}  // namespace slipstream
