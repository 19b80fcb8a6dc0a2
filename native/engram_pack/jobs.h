// The kinds of work. Each is null when there is no memory.
#pragma once

#include "job.h"

namespace engram {

Job* make_pack(const ep_rows& rows, const uint8_t* header, const ep_limits& limits, uint8_t* hashes);
Job* make_hash(int32_t shard, uint64_t size, const ep_limits& limits, uint8_t* hashes);
Job* make_compare(const ep_rows& rows, const ep_limits& limits);

}  // namespace engram
