// libFuzzer target: a file of any content is opened as the shard of rows 5 to 14 of 30, layer 14. Only one with the very
// header and the very size may be; then its first row is the file's.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../engram_store.h"

namespace {

constexpr uint64_t kFirst = 5, kEnd = 15, kSize = 4096 + 264 * (kEnd - kFirst);

bool is_good(const uint8_t* data, size_t size) {
  uint8_t header[4096] = {};
  const uint64_t fields[6] = {0x31344E4531565344, 14, kFirst, kEnd, 30, 264};
  memcpy(header, fields, sizeof fields);
  return size == kSize && memcmp(data, header, sizeof header) == 0;
}

void require(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "%s\n", what);
  abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = open("shard", O_RDWR | O_CREAT | O_TRUNC, 0600);
  require(file >= 0 && ftruncate(file, 0) == 0, "no file");
  require(pwrite(file, data, size, 0) == static_cast<ssize_t>(size), "not written");
  const es_options options{ES_THREADS, 1, 1, 1, 0, 14, kFirst, kEnd, 30};
  uint64_t handle = 0;
  es_error error;
  const int code = es_open_packed("shard", &options, 0, &handle, &error);
  require((code == ES_OK) == is_good(data, size), error.text);
  require(code == ES_OK || code == ES_HEADER || code == ES_SIZE, error.text);
  if (code != ES_OK) return 0;
  const int64_t row = kFirst;
  uint8_t out[264];
  require(es_fetch(handle, &row, 1, out, &error) == ES_OK && memcmp(out, data + 4096, 264) == 0, "another row");
  require(es_close(handle, &error) == ES_OK, "not closed");
  return 0;
}
