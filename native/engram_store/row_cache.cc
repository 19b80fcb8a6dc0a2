#include "row_cache.h"

#include <string.h>

namespace engram {

uint64_t RowCache::sets_for(uint64_t budget, uint32_t ways, uint64_t owned) {
  const uint64_t paid = budget / (kSlotBytes * ways + 1);
  const uint64_t useful = (owned + ways - 1) / ways;
  return paid < useful ? paid : useful;
}

bool RowCache::allocate(uint64_t sets, uint32_t ways) {
  if (!pages_.allocate(sets * (kSlotBytes * ways + 1))) return false;
  sets_ = sets;
  ways_ = ways;
  rows_ = pages_.data() + sets * ways * 8;
  victims_ = rows_ + sets * ways * kRowBytes;
  return true;
}

bool RowCache::take(int64_t id, uint8_t* out) {
  const uint64_t set = static_cast<uint64_t>(id) % sets_;
  const uint64_t tag = static_cast<uint64_t>(id) + 1;
  const Lock lock(locks_[set % kLocks]);
  const uint64_t* tags = tags_of(set);
  for (uint32_t way = 0; way < ways_; ++way) {
    if (tags[way] != tag) continue;
    memcpy(out, row_of(set, way), kRowBytes);
    return true;
  }
  return false;
}

void RowCache::put(int64_t id, const uint8_t* row) {
  const uint64_t set = static_cast<uint64_t>(id) % sets_;
  const uint64_t tag = static_cast<uint64_t>(id) + 1;
  const Lock lock(locks_[set % kLocks]);
  uint64_t* tags = tags_of(set);
  for (uint32_t way = 0; way < ways_; ++way) {
    if (tags[way] == tag) return;
  }
  const uint32_t way = victims_[set];
  victims_[set] = static_cast<uint8_t>((way + 1) % ways_);
  tags[way] = tag;
  memcpy(row_of(set, way), row, kRowBytes);
}

}  // namespace engram
