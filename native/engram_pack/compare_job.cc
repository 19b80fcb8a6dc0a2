// Comparing: a unit is some whole rows, which needs no other unit.
#include <string.h>

#include <algorithm>

#include "jobs.h"
#include "rows.h"

namespace engram {
namespace {

constexpr uint64_t kRowsOfAUnit = kBlockBytes / kRowBytes;

class CompareJob final : public Job {
 public:
  CompareJob(const ep_rows& rows, const ep_limits& limits, uint64_t count)
      : Job(limits, count * kRowBytes, (count + kRowsOfAUnit - 1) / kRowsOfAUnit),
        rows_(rows),
        shard_(EP_SHARD),
        source_(rows.shard),
        header_bytes_(rows.header_bytes) {}

  int open(ep_error*) override {
    rows_.open();
    shard_.open_to_read(source_);
    return EP_OK;
  }

  void describe(ep_state* state) const override {
    fill(state);
    state->direct_read = rows_.direct() && shard_.direct() ? 1 : 0;
  }

 protected:
  uint64_t lane_bytes() const override { return kShardMemory + Rows::memory_bytes(kRowsOfAUnit); }

  void work(uint64_t unit, uint8_t* memory) override {
    const uint64_t begin = unit * kRowsOfAUnit, count = std::min(kRowsOfAUnit, rows_.count() - begin);
    pace(unit, 2 * count * kRowBytes);
    if (stopped(unit)) return;
    ep_error error{};
    const uint8_t* packed = nullptr;
    RowParts parts;
    if (rows_.read(begin, count, memory + kShardMemory, &parts, &error) != EP_OK ||
        shard_.read(header_bytes_ + begin * kRowBytes, count * kRowBytes, memory, &packed, &error) != EP_OK) {
      return report(unit, error);
    }
    const Permit permit(*this);
    for (uint64_t index = 0; index < count; ++index) {
      const uint8_t* row = packed + index * kRowBytes;
      const uint8_t* weights = parts.weights + index * kWeightBytes;
      const uint8_t* scales = parts.scales + index * kScaleBytes;
      if (memcmp(row, weights, kWeightBytes) == 0 && memcmp(row + kWeightBytes, scales, kScaleBytes) == 0) continue;
      int64_t column = 0;
      while (row[column] == (column < 256 ? weights[column] : scales[column - 256])) ++column;
      return report(unit, {EP_DIFFERENT, 0, EP_SHARD, 0, static_cast<int64_t>(rows_.first() + begin + index), 0, column});
    }
    done(count * kRowBytes);
  }

 private:
  static constexpr uint64_t kShardMemory = window_bytes(kRowsOfAUnit * kRowBytes);

  Rows rows_;
  File shard_;
  const int32_t source_;
  const uint64_t header_bytes_;
};

}  // namespace

Job* make_compare(const ep_rows& rows, const ep_limits& limits) {
  return new CompareJob(rows, limits, rows.end - rows.first);
}

}  // namespace engram
