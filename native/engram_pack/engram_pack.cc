// The C interface: numbers are checked here, so that no sum below can overflow.
#include "engram_pack.h"

#include <errno.h>

#include "chunk_hash.h"
#include "jobs.h"
#include "rows.h"

namespace engram {
namespace {

constexpr uint32_t kMaxThreads = 256;
constexpr uint64_t kMaxHeader = uint64_t{1} << 20;
constexpr uint64_t kMaxBytes = uint64_t{1} << 56;  // of any file and any number of bytes

int wrong(ep_error* error, uint64_t observed) {
  *error = {EP_ARGUMENT, 0, EP_NO_FILE, 0, 0, 0, static_cast<int64_t>(observed)};
  return EP_ARGUMENT;
}

int check(const ep_limits& limits, ep_error* error) {
  if (limits.threads < 1 || limits.threads > kMaxThreads) return wrong(error, limits.threads);
  if (limits.bytes_s > kMaxBytes) return wrong(error, limits.bytes_s);
  return EP_OK;
}

int check(const ep_rows& rows, ep_error* error) {
  if (rows.header_bytes > kMaxHeader) return wrong(error, rows.header_bytes);
  if (rows.first > rows.end || rows.end > kMaxBytes / kRowBytes) return wrong(error, rows.end);
  if (rows.weight_at > kMaxBytes || rows.scale_at > kMaxBytes) return wrong(error, rows.weight_at);
  return EP_OK;
}

int begin(Job* job, ep_job** handle, ep_error* error) {
  if (job == nullptr) {
    *error = {EP_IO, ENOMEM, EP_NO_FILE, 0, 0, 0, 0};
    return EP_IO;
  }
  uint8_t nothing[EP_HASH_BYTES];
  ep_blake3(nullptr, 0, nothing);  // it looks at the processor once, before threads could do so at one time
  int code = job->open(error);
  if (code == EP_OK) code = job->start(error);
  if (code == EP_OK) {
    *handle = reinterpret_cast<ep_job*>(job);
  } else {
    delete job;
  }
  return code;
}

Job* job_of(ep_job* handle) { return reinterpret_cast<Job*>(handle); }

}  // namespace
}  // namespace engram

using namespace engram;

extern "C" {

uint32_t ep_abi_version(void) { return EP_ABI_VERSION; }

int ep_pack(const ep_rows* rows, const uint8_t* header, const ep_limits* limits, uint8_t* hashes, ep_job** job,
            ep_error* error) {
  if (const int code = check(*rows, error)) return code;
  if (const int code = check(*limits, error)) return code;
  return begin(make_pack(*rows, header, *limits, hashes), job, error);
}

int ep_hash(int32_t shard, uint64_t size, const ep_limits* limits, uint8_t* hashes, ep_job** job, ep_error* error) {
  if (size > kMaxBytes) return wrong(error, size);
  if (const int code = check(*limits, error)) return code;
  return begin(make_hash(shard, size, *limits, hashes), job, error);
}

int ep_compare(const ep_rows* rows, const ep_limits* limits, ep_job** job, ep_error* error) {
  if (const int code = check(*rows, error)) return code;
  if (const int code = check(*limits, error)) return code;
  return begin(make_compare(*rows, *limits), job, error);
}

int ep_wait(ep_job* job, uint32_t milliseconds, ep_state* state) {
  const bool ended = job_of(job)->wait(milliseconds);
  job_of(job)->describe(state);
  return ended ? 1 : 0;
}

int ep_end(ep_job* job, ep_state* state, ep_error* error) {
  const int code = job_of(job)->finish(error);
  job_of(job)->describe(state);
  delete job_of(job);
  return code;
}

void ep_blake3(const uint8_t* data, size_t size, uint8_t* hash) {
  ChunkHash whole;
  whole.add(data, size);
  whole.write(hash);
}

}  // extern "C"
