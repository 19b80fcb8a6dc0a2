// The threads that read for all stores of the process, as many as the store with the most readers asks for.
#pragma once

#include <atomic>

#include "row_file.h"

namespace engram {

// Pieces of one call. Whoever is free takes the next one; up to `most_helpers` threads of the pool, beside the caller.
struct Job {
  Job(const RowFile& of, const Piece* pieces_of, uint64_t pieces_count, uint32_t most)
      : file(of), pieces(pieces_of), count(pieces_count), most_helpers(most) {}
  const RowFile& file;
  const Piece* const pieces;
  const uint64_t count;
  const uint32_t most_helpers;
  std::atomic<uint64_t> next{0};
  std::atomic<uint64_t> bytes{0};
  // Below: under the pool's mutex.
  uint32_t helpers = 0;
  Job* behind = nullptr;
  bool queued = false;
  Condition left;
  int code = ES_OK;
  es_error* error = nullptr;  // the caller's; filled by the first that fails
};

class ThreadPool : public OnHeap {
 public:
  // The pool of this process with at least `helpers` threads; give it back. A child process gets one of its own.
  static int join(uint32_t helpers, const char* path, ThreadPool** pool, es_error* error);
  static void leave(ThreadPool* pool);

  // Reads all pieces with the caller and its `window` of 8192 bytes.
  void run(Job& job, uint8_t* window);

 private:
  ThreadPool() = default;
  ~ThreadPool();
  int grow(uint32_t helpers, const char* path, es_error* error);
  static void* serve(void* self);
  void serve_jobs();
  void work_on(Job& job, uint8_t* window);
  Job* next_job() const;
  void append(Job& job);
  void remove(Job& job);

  static constexpr uint32_t kMost = 1024;
  pid_t owner_ = 0;
  uint64_t users_ = 0;    // under the lock of the process
  uint32_t started_ = 0;  // and this
  pthread_t threads_[kMost];
  Mutex mutex_;
  Condition work_;
  Job* first_ = nullptr;
  bool stopping_ = false;
};

}  // namespace engram
