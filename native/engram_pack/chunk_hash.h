// BLAKE3 of a chunk. The implementation is the official one in C; see blake3.lock.
#pragma once

#include <blake3.h>

#include "engram_pack.h"

namespace engram {

class ChunkHash {
 public:
  ChunkHash() { blake3_hasher_init(&hasher_); }
  void add(const uint8_t* data, uint64_t size) { blake3_hasher_update(&hasher_, data, size); }
  void write(uint8_t* hash) const { blake3_hasher_finalize(&hasher_, hash, EP_HASH_BYTES); }

 private:
  blake3_hasher hasher_;
};

}  // namespace engram
