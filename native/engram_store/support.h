// Small building blocks: locks, memory that a fork does not copy, errors in one form. Nothing here throws.
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "engram_store.h"

namespace engram {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kWindow = 2 * kPage;
constexpr uint64_t kHeaderBytes = 4096;
constexpr uint64_t kWeightBytes = 256;
constexpr uint64_t kScaleBytes = 8;
constexpr uint64_t kRowBytes = kWeightBytes + kScaleBytes;

// Made by `new`, which gives null when there is no memory; no part of the C++ run-time library is linked for it.
struct OnHeap {
  static void* operator new(size_t bytes) noexcept { return malloc(bytes); }
  static void operator delete(void* memory) noexcept { free(memory); }
};

class Mutex {
 public:
  Mutex() { pthread_mutex_init(&mutex_, nullptr); }
  ~Mutex() { pthread_mutex_destroy(&mutex_); }
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }
  pthread_mutex_t* raw() { return &mutex_; }

 private:
  pthread_mutex_t mutex_;
};

class Lock {
 public:
  explicit Lock(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

class Condition {
 public:
  Condition() { pthread_cond_init(&condition_, nullptr); }
  ~Condition() { pthread_cond_destroy(&condition_); }
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  void wait(Mutex& mutex) { pthread_cond_wait(&condition_, mutex.raw()); }
  void signal() { pthread_cond_signal(&condition_); }
  void broadcast() { pthread_cond_broadcast(&condition_); }

 private:
  pthread_cond_t condition_;
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

// Fills *error, if there is one, with
// "WHAT; where: PATH at OFFSET; expected: EXPECTED; observed: OBSERVED" and returns `code`.
struct Failure {
  int code;
  const char* what;
  const char* path = "";
  int64_t offset = -1;
  int sys_errno = 0;
  int64_t expected = -1;
  int64_t observed = -1;
  const char* expected_text = nullptr;  // instead of the number
  const char* observed_text = nullptr;  // instead of the number or of the errno's name
};
int fail(es_error* error, const Failure& failure);

uint64_t now_ns();
void nap_us(long microseconds);

}  // namespace engram
