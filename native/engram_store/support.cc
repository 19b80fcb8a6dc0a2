#include "support.h"

#include <stdio.h>
#include <string.h>

namespace engram {

namespace {

// strerror_r exists in two shapes; this is GNU's, which returns the text.
const char* errno_text(int number, char* buffer, size_t size) { return strerror_r(number, buffer, size); }

}  // namespace

int fail(es_error* error, const Failure& failure) {
  if (error == nullptr) return failure.code;
  error->code = failure.code;
  error->sys_errno = failure.sys_errno;
  error->offset = failure.offset;
  error->expected = failure.expected;
  error->observed = failure.observed;
  char where[32] = "", expected[32], observed[160], name[96];
  if (failure.offset >= 0) snprintf(where, sizeof where, " at %lld", static_cast<long long>(failure.offset));
  snprintf(expected, sizeof expected, "%lld", static_cast<long long>(failure.expected));
  if (failure.sys_errno != 0) {
    snprintf(observed, sizeof observed, "%s (errno %d)", errno_text(failure.sys_errno, name, sizeof name),
             failure.sys_errno);
  } else {
    snprintf(observed, sizeof observed, "%lld", static_cast<long long>(failure.observed));
  }
  snprintf(error->text, sizeof error->text, "%s; where: %.4095s%s; expected: %s; observed: %s", failure.what,
           failure.path, where, failure.expected_text != nullptr ? failure.expected_text : expected,
           failure.observed_text != nullptr ? failure.observed_text : observed);
  return failure.code;
}

}  // namespace engram
