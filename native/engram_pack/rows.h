// Rows of the checkpoint, read as they are needed for a part of a shard.
#pragma once

#include "file.h"

namespace engram {

constexpr uint64_t kWeightBytes = 256;
constexpr uint64_t kScaleBytes = 8;
constexpr uint64_t kRowBytes = kWeightBytes + kScaleBytes;
constexpr uint64_t kBlockBytes = uint64_t{2} << 20;  // of a shard: read, computed and written at a time
static_assert(EP_CHUNK_BYTES % kBlockBytes == 0 && kRowBytes == EP_ROW_BYTES);

// Consecutive rows in memory: weights [count, 256], scales [count, 8].
struct RowParts {
  const uint8_t* weights = nullptr;
  const uint8_t* scales = nullptr;
};

class Rows {
 public:
  explicit Rows(const ep_rows& where) : where_(where), file_(EP_CHECKPOINT) {}
  void open() { file_.open_to_read(where_.checkpoint); }
  bool direct() const { return file_.direct(); }
  uint64_t count() const { return where_.end - where_.first; }
  uint64_t first() const { return where_.first; }

  static constexpr uint64_t memory_bytes(uint64_t count) {
    return window_bytes(count * kWeightBytes) + window_bytes(count * kScaleBytes);
  }
  // Brings the rows [begin, begin + count), counted from the first one, into memory [memory_bytes(count)].
  int read(uint64_t begin, uint64_t count, uint8_t* memory, RowParts* parts, ep_error* error) const {
    const uint64_t row = where_.first + begin;
    if (const int code = file_.read(where_.weight_at + row * kWeightBytes, count * kWeightBytes, memory, &parts->weights, error)) {
      return code;
    }
    memory += window_bytes(count * kWeightBytes);
    return file_.read(where_.scale_at + row * kScaleBytes, count * kScaleBytes, memory, &parts->scales, error);
  }

 private:
  const ep_rows where_;
  File file_;
};

}  // namespace engram
