// What all parts of the store share: sizes, errors in one form.
#pragma once

#include "engram_store.h"
#include "heap.h"
#include "threads.h"

namespace engram {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kWindow = 2 * kPage;
constexpr uint64_t kHeaderBytes = 4096;
constexpr uint64_t kWeightBytes = 256;
constexpr uint64_t kScaleBytes = 8;
constexpr uint64_t kRowBytes = kWeightBytes + kScaleBytes;

// Fills *error, if there is one, with
// "WHAT; where: PATH at OFFSET; expected: EXPECTED; observed: OBSERVED" and returns `code`.
struct Failure {
  int code;
  const char* what;
  const char* path = "";
  int64_t offset = -1;
  int sys_errno = 0;
  int64_t expected = -1;
  int64_t observed = -1;
  const char* expected_text = nullptr;  // instead of the number
  const char* observed_text = nullptr;  // instead of the number or of the errno's name
};
int fail(es_error* error, const Failure& failure);

}  // namespace engram
