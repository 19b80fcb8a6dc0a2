/* Packs through a built library, also where no Python of that architecture is:
 * smoke LIBRARY CHECKPOINT SHARD WEIGHT_AT SCALE_AT FIRST END > hash of the only chunk. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../engram_pack.h"

#define LOAD(name) __typeof__(&name) load_##name = (__typeof__(&name))dlsym(library, #name)

static int stop(const char *what, const ep_error *error) {
  fprintf(stderr, "%s: code %d errno %d at %lld\n", what, error->code, error->sys_errno, (long long)error->offset);
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 8) return 2;
  void *library = dlopen(argv[1], RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "dlopen: %s\n", dlerror());
    return 1;
  }
  LOAD(ep_abi_version);
  LOAD(ep_pack);
  LOAD(ep_hash);
  LOAD(ep_compare);
  LOAD(ep_wait);
  LOAD(ep_end);
  if (load_ep_abi_version() != EP_ABI_VERSION) return 1;
  uint8_t header[4096], packed[EP_HASH_BYTES], hashed[EP_HASH_BYTES];
  for (size_t index = 0; index < sizeof header; ++index) header[index] = (uint8_t)(index * 7);
  const ep_rows rows = {open(argv[2], O_RDONLY),       open(argv[3], O_RDWR | O_CREAT | O_TRUNC, 0644),
                        strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10),
                        strtoull(argv[6], NULL, 10), strtoull(argv[7], NULL, 10),
                        sizeof header};
  const uint64_t size = sizeof header + EP_ROW_BYTES * (rows.end - rows.first);
  const ep_limits limits = {64 << 20, 0, 2};
  ep_job *job = NULL;
  ep_state state;
  ep_error error = {0};
  if (size > EP_CHUNK_BYTES) return 2;
  if (load_ep_pack(&rows, header, &limits, packed, &job, &error)) return stop("ep_pack", &error);
  while (!load_ep_wait(job, 50, &state)) {
  }
  if (load_ep_end(job, &state, &error)) return stop("ep_pack", &error);
  if (load_ep_hash(rows.shard, size, &limits, hashed, &job, &error)) return stop("ep_hash", &error);
  while (!load_ep_wait(job, 50, &state)) {
  }
  if (load_ep_end(job, &state, &error)) return stop("ep_hash", &error);
  if (memcmp(packed, hashed, sizeof packed) != 0) return stop("another hash", &error);
  for (int wrong = 0; wrong < 2; ++wrong) {
    if (load_ep_compare(&rows, &limits, &job, &error)) return stop("ep_compare", &error);
    while (!load_ep_wait(job, 50, &state)) {
    }
    const int code = load_ep_end(job, &state, &error);
    const int64_t row = (int64_t)rows.first + 5;
    if (!wrong && code != EP_OK) return stop("ep_compare", &error);
    if (wrong && (code != EP_DIFFERENT || error.offset != row || error.observed != 7)) return stop("a difference", &error);
    uint8_t byte;  /* of row 5, column 7: changed for the second round, put back after it */
    const off_t at = (off_t)(sizeof header + 5 * EP_ROW_BYTES + 7);
    if (pread(rows.shard, &byte, 1, at) != 1) return 1;
    byte ^= 1;
    if (pwrite(rows.shard, &byte, 1, at) != 1) return 1;
  }
  for (size_t index = 0; index < sizeof packed; ++index) printf("%02x", packed[index]);
  printf("\n");
  return 0;
}
