// Memory without exceptions and without a C++ run-time library.
#pragma once

#include <stdint.h>
#include <stdlib.h>

namespace engram {

// Made by `new`, which gives null when there is no memory; no part of the C++ run-time library is linked for it.
struct OnHeap {
  static void* operator new(size_t bytes) noexcept { return malloc(bytes); }
  static void operator delete(void* memory) noexcept { free(memory); }
};

// Zeroed pages that a child process does not see: a fork while the disk writes into them would otherwise split them.
class Pages {
 public:
  Pages() = default;
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  bool allocate(uint64_t bytes);
  uint8_t* data() const { return data_; }
  void leave();  // never unmapped: a device may still write into them

 private:
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// `count` plain values, not initialised; data() is null when there is no memory.
template <typename T>
class Array {
 public:
  explicit Array(uint64_t count) : data_(static_cast<T*>(malloc(count * sizeof(T) + 1))) {}
  ~Array() { free(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* data() const { return data_; }
  T& operator[](uint64_t index) const { return data_[index]; }

 private:
  T* data_;
};

}  // namespace engram
