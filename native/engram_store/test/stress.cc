// Many callers at once on stores of every kind, for the sanitizers: stress DIRECTORY SECONDS
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../engram_store.h"

namespace {

constexpr uint64_t kTotal = 5000, kFirst = 1200, kEnd = 3100, kWeightAt = 1032, kScaleAt = kWeightAt + 256 * kTotal + 4096;

#define REQUIRE(condition)                                                            \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, error.text); \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

uint8_t byte_of(uint64_t row, uint64_t column) { return static_cast<uint8_t>(row * 131 + column * 7 + (row >> 8)); }

void write_file(const std::string& path, const std::vector<uint8_t>& content) {
  FILE* file = fopen(path.c_str(), "wb");
  if (file == nullptr || fwrite(content.data(), 1, content.size(), file) != content.size() || fclose(file) != 0) {
    perror(path.c_str());
    exit(1);
  }
}

std::vector<uint8_t> packed() {
  std::vector<uint8_t> content(4096 + 264 * (kEnd - kFirst));
  const uint64_t header[6] = {0x31344E4531565344, 14, kFirst, kEnd, kTotal, 264};
  memcpy(content.data(), header, sizeof header);
  for (uint64_t row = kFirst; row < kEnd; ++row) {
    for (uint64_t column = 0; column < 264; ++column) content[4096 + 264 * (row - kFirst) + column] = byte_of(row, column);
  }
  return content;
}

std::vector<uint8_t> checkpoint() {
  std::vector<uint8_t> content(kScaleAt + 8 * kTotal, 0xAA);
  for (uint64_t row = 0; row < kTotal; ++row) {
    for (uint64_t column = 0; column < 256; ++column) content[kWeightAt + 256 * row + column] = byte_of(row, column);
    for (uint64_t column = 0; column < 8; ++column) content[kScaleAt + 8 * row + column] = byte_of(row, 256 + column);
  }
  return content;
}

es_options options_of(int backend, uint64_t cache_bytes) { return {backend, 16, 6, 4, cache_bytes, 14, kFirst, kEnd, kTotal}; }

void call_for(uint64_t handle, unsigned seed, std::atomic<bool>& stop, std::atomic<uint64_t>& lookups) {
  std::mt19937_64 random(seed);
  es_error error{};
  std::vector<int64_t> ids;
  std::vector<uint8_t> out;
  while (!stop.load()) {
    ids.resize(random() % 80);
    for (auto& id : ids) id = static_cast<int64_t>(kFirst + random() % (random() % 2 ? kEnd - kFirst : 50));
    out.assign(ids.size() * 264 + 1, 0xEE);
    const int code = es_fetch(handle, ids.data(), ids.size(), out.data(), &error);
    if (code == ES_CLOSED) return;
    REQUIRE(code == ES_OK);
    for (size_t index = 0; index < ids.size(); ++index) {
      for (uint64_t column = 0; column < 264; ++column) {
        REQUIRE(out[index * 264 + column] == byte_of(static_cast<uint64_t>(ids[index]), column));
      }
    }
    REQUIRE(out[ids.size() * 264] == 0xEE);
    lookups += ids.size();
    if (random() % 8 == 0) {
      const int64_t wrong[2] = {static_cast<int64_t>(kFirst), random() % 2 ? -1 : static_cast<int64_t>(kEnd)};
      es_error refused{};
      const int answer = es_fetch(handle, wrong, 2, out.data(), &refused);
      if (answer == ES_CLOSED) return;
      REQUIRE(answer == ES_ID);
    }
    es_counters counters;
    if (es_count(handle, &counters, &error) == ES_CLOSED) return;
    REQUIRE(counters.hits <= counters.lookups);
  }
}

void stress(const std::string& directory, bool is_packed, int backend, uint64_t cache_bytes, int milliseconds) {
  es_error error{};
  uint64_t handle = 0;
  const es_options options = options_of(backend, cache_bytes);
  int code = is_packed ? es_open_packed((directory + "/packed").c_str(), &options, 0, &handle, &error)
                       : es_open_checkpoint((directory + "/checkpoint").c_str(), kWeightAt, kScaleAt, &options, 1, &handle, &error);
  if (code == ES_BACKEND) {
    printf("no io_uring here: %s\n", error.text);
    return;
  }
  REQUIRE(code == ES_OK);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> lookups{0};
  std::vector<std::thread> callers;
  for (unsigned seed = 0; seed < 10; ++seed) callers.emplace_back(call_for, handle, seed, std::ref(stop), std::ref(lookups));
  usleep(static_cast<useconds_t>(milliseconds) * 1000);
  const pid_t child = fork();
  if (child == 0) {  // its parent's threads are in the middle of calls
    const int64_t id = kFirst;
    uint8_t row[264];
    es_error refused{};
    uint64_t own = 0;
#ifdef __SANITIZE_THREAD__
    es_options alone = options;  // that sanitizer cannot follow threads which a child starts
    alone.threads = 1;
#else
    const es_options& alone = options;
#endif
    int outcome = es_fetch(handle, &id, 1, row, &refused) == ES_FORKED ? 0 : 1;
    outcome += es_close(handle, &refused) == ES_OK && es_close(handle, &refused) == ES_CLOSED ? 0 : 2;
    outcome += es_open_packed((directory + "/packed").c_str(), &alone, 0, &own, &refused) == ES_OK ? 0 : 4;
    outcome += es_fetch(own, &id, 1, row, &refused) == ES_OK && row[1] == byte_of(kFirst, 1) ? 0 : 8;
    outcome += es_close(own, &refused) == ES_OK ? 0 : 16;
    _exit(outcome);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (status != 0) fprintf(stderr, "child: %d\n", status);
  REQUIRE(status == 0);
  if (backend == ES_IO_URING) stop = true;  // the other backend is closed while it is called
  if (stop) {
    for (auto& caller : callers) caller.join();
    es_counters counters;
    REQUIRE(es_count(handle, &counters, &error) == ES_OK);
    REQUIRE(counters.lookups == lookups);
    REQUIRE((counters.lookups - counters.hits) * (is_packed ? 1 : 2) == counters.reads);
  }
  REQUIRE(es_close(handle, &error) == ES_OK);
  if (!stop) {
    for (auto& caller : callers) caller.join();
  }
  REQUIRE(es_close(handle, &error) == ES_CLOSED);
  printf("packed=%d backend=%d cache=%llu lookups=%llu\n", is_packed, backend, static_cast<unsigned long long>(cache_bytes),
         static_cast<unsigned long long>(lookups.load()));
}

// A file that is truncated while calls are on their way: each ends with rows or with ES_SHORT.
void truncated(const std::string& directory, int backend) {
  const std::string path = directory + "/shrinking";
  write_file(path, packed());
  es_error error{};
  uint64_t handle = 0;
  const es_options options = options_of(backend, 0);
  if (es_open_packed(path.c_str(), &options, 0, &handle, &error) == ES_BACKEND) return;
  std::atomic<int> shorts{0};
  std::vector<std::thread> callers;
  for (unsigned seed = 0; seed < 6; ++seed) {
    callers.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      std::vector<uint8_t> out(264 * 64);
      std::vector<int64_t> ids(64);
      for (int round = 0; round < 2000 && shorts < 50; ++round) {
        es_error seen{};
        for (auto& id : ids) id = static_cast<int64_t>(kFirst + random() % (kEnd - kFirst));
        const int code = es_fetch(handle, ids.data(), ids.size(), out.data(), &seen);
        if (code == ES_SHORT) ++shorts;
        if (code != ES_OK && code != ES_SHORT) {
          fprintf(stderr, "%d: %s\n", code, seen.text);
          exit(1);
        }
      }
    });
  }
  usleep(2000);
  REQUIRE(truncate(path.c_str(), 300 * 264) == 0);
  for (auto& caller : callers) caller.join();
  REQUIRE(shorts > 0);
  REQUIRE(es_close(handle, &error) == ES_OK);
}

int entries(const char* directory) {
  int count = 0;
  DIR* listing = opendir(directory);
  while (readdir(listing) != nullptr) ++count;
  closedir(listing);
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string directory = argv[1];
  const int milliseconds = static_cast<int>(atof(argv[2]) * 1000);
  write_file(directory + "/packed", packed());
  write_file(directory + "/checkpoint", checkpoint());
  const int descriptors = entries("/proc/self/fd");
  for (const int backend : {ES_THREADS, ES_IO_URING}) {
    for (const bool is_packed : {true, false}) {
      for (const uint64_t cache_bytes : {uint64_t{0}, uint64_t{40000}, uint64_t{1} << 30}) {
        stress(directory, is_packed, backend, cache_bytes, milliseconds);
      }
    }
    truncated(directory, backend);
  }
  es_error error{};
  REQUIRE(entries("/proc/self/fd") == descriptors);
  puts("passed");
  return 0;
}
