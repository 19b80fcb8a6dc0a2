/* Loads a built library and reads every row of a shard through it, also where no Python of that architecture is:
 * smoke LIBRARY SHARD LAYER FIRST END TOTAL > rows. On stderr the backend and why. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "../engram_store.h"

#define LOAD(name) __typeof__(&name) load_##name = (__typeof__(&name))dlsym(library, #name)

static int stop(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  return 1;
}

int main(int argc, char **argv) {
  static es_error error;
  if (argc != 7) return 2;
  void *library = dlopen(argv[1], RTLD_NOW);
  if (library == NULL) return stop("dlopen", dlerror());
  LOAD(es_abi_version);
  LOAD(es_open_packed);
  LOAD(es_describe);
  LOAD(es_fetch);
  LOAD(es_count);
  LOAD(es_close);
  const uint64_t first = strtoull(argv[4], NULL, 10), end = strtoull(argv[5], NULL, 10);
  const es_options options = {ES_AUTO, 32, 8, 4, 1 << 20, strtoull(argv[3], NULL, 10), first, end, strtoull(argv[6], NULL, 10)};
  uint64_t handle = 0;
  es_info info;
  es_counters counters;
  const size_t count = end - first;
  int64_t *ids = malloc((count + 1) * sizeof *ids);
  uint8_t *rows = malloc((count + 1) * ES_ROW_BYTES);
  for (size_t index = 0; index <= count; ++index) ids[index] = (int64_t)(first + index);
  if (load_es_abi_version() != ES_ABI_VERSION) return stop("es_abi_version", "another");
  if (load_es_open_packed(argv[2], &options, 0, &handle, &error)) return stop("es_open_packed", error.text);
  if (load_es_describe(handle, &info, &error)) return stop("es_describe", error.text);
  fprintf(stderr, "backend=%d slots=%llu why=%s\n", info.backend, (unsigned long long)info.slots, info.why);
  if (load_es_fetch(handle, ids, count + 1, rows, &error) != ES_ID) return stop("es_fetch", "took a row of another rank");
  for (int round = 0; round < 2; ++round) {
    if (load_es_fetch(handle, ids, count, rows, &error)) return stop("es_fetch", error.text);
  }
  if (load_es_count(handle, &counters, &error) || counters.lookups != 2 * count || counters.hits < count) {
    return stop("es_count", error.text);
  }
  if (fwrite(rows, ES_ROW_BYTES, count, stdout) != count) return stop("stdout", "cannot be written");
  if (load_es_close(handle, &error)) return stop("es_close", error.text);
  if (load_es_close(handle, &error) != ES_CLOSED) return stop("es_close", "closed twice");
  free(ids);
  free(rows);
  return 0;
}
