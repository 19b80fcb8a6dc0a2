// A lookup as a CUDA host function makes it: no argument but the job, no result but what lies in it.
#include <string.h>
#include <time.h>

#include "engram_store.h"

namespace {

constexpr uint64_t kWeightBytes = 256, kScaleBytes = 8;
constexpr int kNaN = 0xff, kOne = 127;  // e4m3's NaN, e8m0's 1

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

void add(uint64_t* counter, uint64_t value) { __atomic_fetch_add(counter, value, __ATOMIC_RELAXED); }

// Zeros where a row is not owned; how many are.
uint64_t sort_out(const es_job& job) {
  uint64_t count = 0;
  for (uint64_t token = 0; token < job.tokens; ++token) {
    for (uint64_t column = 0; column < job.columns; ++column) {
      const uint64_t place = token * job.columns + column;
      const int64_t id = job.ids[token * job.stride + column];
      if (id >= job.first && id < job.end) {
        job.owned[count] = id;
        job.places[count++] = place;
      } else {
        memset(job.weights + place * kWeightBytes, 0, kWeightBytes);
        memset(job.scales + place * kScaleBytes, 0, kScaleBytes);
      }
    }
  }
  return count;
}

}  // namespace

extern "C" void es_serve(void* opaque) {
  es_job& job = *static_cast<es_job*>(opaque);
  const uint64_t begin = now_ns();
  const uint64_t count = sort_out(job);
  es_error error{};
  int code = es_fetch(job.handle, job.owned, count, job.rows, &error);
  if (code != ES_OK) {
    add(&job.retries, 1);
    code = es_fetch(job.handle, job.owned, count, job.rows, &error);
  }
  if (code == ES_OK) {
    for (uint64_t row = 0; row < count; ++row) {
      const uint8_t* from = job.rows + row * ES_ROW_BYTES;
      memcpy(job.weights + job.places[row] * kWeightBytes, from, kWeightBytes);
      memcpy(job.scales + job.places[row] * kScaleBytes, from + kWeightBytes, kScaleBytes);
    }
  } else {
    memset(job.weights, kNaN, job.tokens * job.columns * kWeightBytes);
    memset(job.scales, kOne, job.tokens * job.columns * kScaleBytes);
    if (__atomic_load_n(&job.failed, __ATOMIC_ACQUIRE) == 0) {
      job.error = error;
      __atomic_store_n(&job.failed, 1, __ATOMIC_RELEASE);
    }
  }
  add(&job.busy_ns, now_ns() - begin);
  add(&job.calls, 1);
}
