// Packing: a unit is a chunk of the shard, made block by block, so that its bytes go through one hash in order.
#include <string.h>

#include <algorithm>

#include "chunk_hash.h"
#include "jobs.h"
#include "rows.h"

namespace engram {
namespace {

constexpr uint64_t kRowsOfABlock = kBlockBytes / kRowBytes + 2;  // one at each end in part

void copy_row(uint8_t* out, const RowParts& parts, uint64_t index) {
  memcpy(out, parts.weights + index * kWeightBytes, kWeightBytes);
  memcpy(out + kWeightBytes, parts.scales + index * kScaleBytes, kScaleBytes);
}

class PackJob final : public Job {
 public:
  PackJob(const ep_rows& rows, const uint8_t* header, const ep_limits& limits, uint8_t* hashes, uint64_t total)
      : Job(limits, total, (total + EP_CHUNK_BYTES - 1) / EP_CHUNK_BYTES),
        rows_(rows),
        shard_(EP_SHARD),
        target_(rows.shard),
        header_(header),
        header_bytes_(rows.header_bytes),
        total_(total),
        hashes_(hashes) {}

  int open(ep_error* error) override {
    rows_.open();
    return shard_.open_to_write(target_, total_, error);
  }

  void describe(ep_state* state) const override {
    fill(state);
    state->direct_read = rows_.direct() ? 1 : 0;
    state->direct_write = shard_.direct() ? 1 : 0;
  }

 protected:
  uint64_t lane_bytes() const override { return kBlockBytes + Rows::memory_bytes(kRowsOfABlock); }

  void work(uint64_t chunk, uint8_t* memory) override {
    const uint64_t begin = chunk * EP_CHUNK_BYTES, end = std::min(begin + EP_CHUNK_BYTES, total_);
    ChunkHash hash;
    ep_error error{};
    uint64_t unsettled = 0;
    for (uint64_t at = begin; at < end; at += kBlockBytes) {
      const uint64_t size = std::min(kBlockBytes, end - at);
      pace(chunk, size);
      if (stopped(chunk)) return;
      RowParts parts;
      const uint64_t first = row_at(at), count = row_at(at + size + kRowBytes - 1) - first;
      if (count > 0 && rows_.read(first, count, memory + kBlockBytes, &parts, &error) != EP_OK) return report(chunk, error);
      {
        const Permit permit(*this);
        interleave(at, size, parts, memory);
        hash.add(memory, size);
      }
      if (stopped(chunk)) return;
      if (shard_.write(at, size, memory, &error) != EP_OK) return report(chunk, error);
      shard_.settle(at - unsettled, unsettled);
      unsettled = size;
      done(size);
    }
    shard_.settle(end - unsettled, unsettled);
    hash.write(hashes_ + chunk * EP_HASH_BYTES);
  }

  int complete(ep_error* error) override { return shard_.cut(total_, error); }

 private:
  // The row that has the byte `position` of the shard, counted from the first one; 0 for those of the header.
  uint64_t row_at(uint64_t position) const {
    return position < header_bytes_ ? 0 : (position - header_bytes_) / kRowBytes;
  }

  // Bytes [at, at + size) of the shard; `parts` begins with the row of the first one.
  void interleave(uint64_t at, uint64_t size, RowParts parts, uint8_t* out) const {
    if (at < header_bytes_) {
      const uint64_t some = std::min(size, header_bytes_ - at);
      memcpy(out, header_ + at, some);
      out += some;
      at += some;
      size -= some;
    }
    if (size == 0) return;
    uint8_t row[kRowBytes];
    uint64_t index = 0;
    if (const uint64_t column = (at - header_bytes_) % kRowBytes) {
      const uint64_t some = std::min(size, kRowBytes - column);
      copy_row(row, parts, index++);
      memcpy(out, row + column, some);
      out += some;
      size -= some;
    }
    for (; size >= kRowBytes; size -= kRowBytes, out += kRowBytes) copy_row(out, parts, index++);
    if (size == 0) return;
    copy_row(row, parts, index);
    memcpy(out, row, size);
  }

  Rows rows_;
  File shard_;
  const int32_t target_;
  const uint8_t* const header_;
  const uint64_t header_bytes_;
  const uint64_t total_;
  uint8_t* const hashes_;
};

}  // namespace

Job* make_pack(const ep_rows& rows, const uint8_t* header, const ep_limits& limits, uint8_t* hashes) {
  return new PackJob(rows, header, limits, hashes, rows.header_bytes + (rows.end - rows.first) * kRowBytes);
}

}  // namespace engram
