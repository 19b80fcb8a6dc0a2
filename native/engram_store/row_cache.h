// Set-associative cache of rows: set = row id modulo the number of sets, round-robin victim within a set.
#pragma once

#include "support.h"

namespace engram {

class RowCache {
 public:
  static constexpr uint64_t kSlotBytes = kRowBytes + 8;  // a row and its tag; a set has one more byte for its victim

  // Sets that `budget` bytes hold, no more than what gives each of the `owned` consecutive rows a slot of its own.
  static uint64_t sets_for(uint64_t budget, uint32_t ways, uint64_t owned);

  // False when there is no memory. Not called when sets_for is 0: then there is no cache.
  bool allocate(uint64_t sets, uint32_t ways);

  // Copies the row out if it is held.
  bool take(int64_t id, uint8_t* out);
  // Holds a row, unless it is held already.
  void put(int64_t id, const uint8_t* row);

  uint64_t sets() const { return sets_; }
  uint64_t slots() const { return sets_ * ways_; }

 private:
  static constexpr uint64_t kLocks = 256;

  uint64_t* tags_of(uint64_t set) const { return reinterpret_cast<uint64_t*>(pages_.data()) + set * ways_; }
  uint8_t* row_of(uint64_t set, uint32_t way) const { return rows_ + (set * ways_ + way) * kRowBytes; }

  uint64_t sets_ = 0;
  uint32_t ways_ = 0;
  Pages pages_;  // tags [sets, ways] (row id + 1, 0 when empty), rows [sets, ways, 264], victims [sets]
  uint8_t* rows_ = nullptr;
  uint8_t* victims_ = nullptr;
  Mutex locks_[kLocks];
};

}  // namespace engram
