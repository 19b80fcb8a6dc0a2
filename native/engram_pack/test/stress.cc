// Every kind of work at once, ended early, failing, and right, for the sanitizers: stress DIRECTORY SECONDS
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../engram_pack.h"

namespace {

constexpr uint64_t kTotal = 30000, kWeightAt = 1001, kScaleAt = kWeightAt + 256 * kTotal + 77, kHeader = 4096;

#define REQUIRE(condition)                                                                                   \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      fprintf(stderr, "%s:%d: %s: code %d errno %d at %lld\n", __FILE__, __LINE__, #condition, error.code,   \
              error.sys_errno, static_cast<long long>(error.offset));                                        \
      exit(1);                                                                                               \
    }                                                                                                        \
  } while (0)

uint8_t byte_of(uint64_t row, uint64_t column) { return static_cast<uint8_t>(row * 131 + column * 7 + (row >> 8)); }

void write_checkpoint(const std::string& path) {
  std::vector<uint8_t> content(kScaleAt + 8 * kTotal, 0xAA);
  for (uint64_t row = 0; row < kTotal; ++row) {
    for (uint64_t column = 0; column < 256; ++column) content[kWeightAt + 256 * row + column] = byte_of(row, column);
    for (uint64_t column = 0; column < 8; ++column) content[kScaleAt + 8 * row + column] = byte_of(row, 256 + column);
  }
  FILE* file = fopen(path.c_str(), "wb");
  if (file == nullptr || fwrite(content.data(), 1, content.size(), file) != content.size() || fclose(file) != 0) {
    perror(path.c_str());
    exit(1);
  }
}

// Follows a job for `waits` times 5 ms at most, then ends it.
int follow(ep_job* job, uint64_t waits, ep_error* error) {
  ep_state state;
  uint64_t before = 0;
  for (uint64_t turn = 0; turn < waits && !ep_wait(job, 5, &state); ++turn) {
    if (state.done < before || state.done > state.total) exit(3);
    before = state.done;
  }
  return ep_end(job, &state, error);
}

void work(const std::string& directory, unsigned seed, std::atomic<bool>& stop, std::atomic<uint64_t>& packs) {
  std::mt19937_64 random(seed);
  const std::string path = directory + "/shard" + std::to_string(seed);
  const int checkpoint = open((directory + "/checkpoint").c_str(), O_RDONLY);
  const std::vector<uint8_t> header(kHeader, 0x5C);
  ep_error error{};
  while (!stop) {
    const int shard = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644);
    REQUIRE(checkpoint >= 0 && shard >= 0);
    const uint64_t first = random() % 100, end = kTotal - random() % 100, size = kHeader + 264 * (end - first);
    const ep_rows rows{checkpoint, shard, kWeightAt, kScaleAt, first, end, kHeader};
    const ep_limits limits{64u << 20, random() % 4 == 0 ? uint64_t{200} << 20 : 0, static_cast<uint32_t>(1 + random() % 5)};
    const uint64_t waits = random() % 3 == 0 ? random() % 4 : 100000;
    uint8_t packed[32], hashed[32], whole[32];
    ep_job* job = nullptr;
    REQUIRE(ep_pack(&rows, header.data(), &limits, packed, &job, &error) == EP_OK);
    int code = follow(job, waits, &error);
    REQUIRE(code == EP_OK || (code == EP_CANCELLED && waits < 4));
    if (code == EP_OK) {
      ++packs;
      REQUIRE(ep_hash(shard, size, &limits, hashed, &job, &error) == EP_OK);
      REQUIRE(follow(job, 100000, &error) == EP_OK && memcmp(packed, hashed, 32) == 0);
      std::vector<uint8_t> content(size);
      REQUIRE(pread(shard, content.data(), size, 0) == static_cast<ssize_t>(size));
      ep_blake3(content.data(), size, whole);
      REQUIRE(memcmp(packed, whole, 32) == 0);
      REQUIRE(ep_compare(&rows, &limits, &job, &error) == EP_OK);
      REQUIRE(follow(job, 100000, &error) == EP_OK);
      const uint64_t row = random() % (end - first), column = random() % 264, later = row + (end - first - row) / 2;
      for (const uint64_t changed : {row, later}) {
        const uint8_t other = static_cast<uint8_t>(~byte_of(first + changed, column));
        REQUIRE(pwrite(shard, &other, 1, static_cast<off_t>(kHeader + 264 * changed + column)) == 1);
      }
      REQUIRE(ep_compare(&rows, &limits, &job, &error) == EP_OK);
      REQUIRE(follow(job, 100000, &error) == EP_DIFFERENT);
      REQUIRE(error.offset == static_cast<int64_t>(first + row) && error.observed == static_cast<int64_t>(column));
      REQUIRE(ep_compare(&rows, &limits, &job, &error) == EP_OK);
      code = follow(job, random() % 2, &error);
      REQUIRE(code == EP_DIFFERENT || code == EP_CANCELLED);
      REQUIRE(ftruncate(shard, static_cast<off_t>(size / 2)) == 0);
      REQUIRE(ep_hash(shard, size, &limits, hashed, &job, &error) == EP_OK);
      REQUIRE(follow(job, 100000, &error) == EP_SHORT && error.role == EP_SHARD);
      const ep_rows beyond{checkpoint, shard, kWeightAt, kScaleAt, first, kTotal + 1, kHeader};
      REQUIRE(ep_pack(&beyond, header.data(), &limits, packed, &job, &error) == EP_OK);
      REQUIRE(follow(job, 100000, &error) == EP_SHORT && error.role == EP_CHECKPOINT);
    }
    close(shard);
  }
  close(checkpoint);
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
  write_checkpoint(directory + "/checkpoint");
  const int descriptors = entries("/proc/self/fd");
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> packs{0};
  std::vector<std::thread> callers;
  for (unsigned seed = 0; seed < 3; ++seed) {
    callers.emplace_back(work, directory, seed, std::ref(stop), std::ref(packs));
  }
  usleep(static_cast<useconds_t>(atof(argv[2]) * 1e6));
  stop = true;
  for (auto& caller : callers) caller.join();
  ep_error error{};
  REQUIRE(entries("/proc/self/fd") == descriptors);
  REQUIRE(packs > 0);
  printf("packs=%llu\npassed\n", static_cast<unsigned long long>(packs.load()));
  return 0;
}
