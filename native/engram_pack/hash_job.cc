// Hashing: a unit is a chunk.
#include <algorithm>

#include "chunk_hash.h"
#include "jobs.h"
#include "rows.h"

namespace engram {
namespace {

// Read and hashed at a time. Hashing costs a tenth of the reading, so most lanes read; with larger blocks a virtual disk has
// more bytes in flight than it is fast with (docs/results/engram-bench.md).
constexpr uint64_t kHashBlockBytes = uint64_t{512} << 10;
static_assert(EP_CHUNK_BYTES % kHashBlockBytes == 0);

class HashJob final : public Job {
 public:
  HashJob(int32_t shard, uint64_t size, const ep_limits& limits, uint8_t* hashes)
      : Job(limits, size, (size + EP_CHUNK_BYTES - 1) / EP_CHUNK_BYTES),
        shard_(EP_SHARD),
        source_(shard),
        size_(size),
        hashes_(hashes) {}

  int open(ep_error*) override {
    shard_.open_to_read(source_);
    return EP_OK;
  }

  void describe(ep_state* state) const override {
    fill(state);
    state->direct_read = shard_.direct() ? 1 : 0;
  }

 protected:
  uint64_t lane_bytes() const override { return window_bytes(kHashBlockBytes); }

  void work(uint64_t chunk, uint8_t* memory) override {
    const uint64_t begin = chunk * EP_CHUNK_BYTES, end = std::min(begin + EP_CHUNK_BYTES, size_);
    ChunkHash hash;
    ep_error error{};
    for (uint64_t at = begin; at < end; at += kHashBlockBytes) {
      const uint64_t size = std::min(kHashBlockBytes, end - at);
      pace(chunk, size);
      if (stopped(chunk)) return;
      const uint8_t* block = nullptr;
      if (shard_.read(at, size, memory, &block, &error) != EP_OK) return report(chunk, error);
      {
        const Permit permit(*this);
        hash.add(block, size);
      }
      done(size);
    }
    hash.write(hashes_ + chunk * EP_HASH_BYTES);
  }

 private:
  File shard_;
  const int32_t source_;
  const uint64_t size_;
  uint8_t* const hashes_;
};

}  // namespace

Job* make_hash(int32_t shard, uint64_t size, const ep_limits& limits, uint8_t* hashes) {
  return new HashJob(shard, size, limits, hashes);
}

}  // namespace engram
