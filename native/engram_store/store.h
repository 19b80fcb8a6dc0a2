// One layer's rows: ids are checked, looked up in the cache, read, counted.
#pragma once

#include <atomic>

#include "reader.h"
#include "row_cache.h"

namespace engram {

class Store : public OnHeap {
 public:
  Store() = default;
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // The file must be open.
  int start(const es_options& options, es_error* error);
  RowFile& file() { return file_; }

  int fetch(const int64_t* ids, uint64_t count, uint8_t* out, es_error* error);
  void describe(es_info* info);
  void count(es_counters* counters);

  // In a child process: gives back the descriptors. The rest, locks of threads that do not exist here among it, is left.
  void forget();

 private:
  int check_ids(const int64_t* ids, uint64_t count, es_error* error) const;
  int read(const Piece* pieces, uint64_t count, uint64_t* bytes, es_error* error);
  int go_on_with_threads(es_error* error);
  int read_all(const int64_t* ids, uint64_t count, uint8_t* out, uint64_t* bytes, es_error* error);
  int read_missing(const int64_t* ids, uint64_t count, uint8_t* out, uint64_t* rows, uint64_t* bytes, es_error* error);

  RowFile file_;
  RowCache cache_;
  Reader* reader_ = nullptr;
  std::atomic<Reader*> instead_{nullptr};  // threads, once the kernel gives no ring to a store that may read either way
  uint32_t spare_threads_ = 0;             // of them; 0 for a store that may not
  uint64_t first_ = 0;
  uint64_t end_ = 0;
  char why_[256] = "";
  Mutex mutex_;
  es_counters counters_{};
};

}  // namespace engram
