// A file by its descriptor: windows of it are read and written past the page cache, or dropped from it.
#pragma once

#include "engram_pack.h"

namespace engram {

constexpr uint64_t kPage = 4096;  // what O_DIRECT may ask of offsets, sizes and memory

constexpr uint64_t down(uint64_t value) { return value & ~(kPage - 1); }
constexpr uint64_t up(uint64_t value) { return down(value + kPage - 1); }
// Memory that a window of `size` bytes anywhere in a file takes.
constexpr uint64_t window_bytes(uint64_t size) { return up(size) + kPage; }

class File {
 public:
  explicit File(ep_role role) : role_(role) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Never fails: where the file cannot be opened again, the descriptor itself is used; it must stay open.
  void open_to_read(int descriptor);
  // The file is empty; `size` bytes are reserved where that is possible.
  int open_to_write(int descriptor, uint64_t size, ep_error* error);
  bool direct() const { return direct_; }

  // Brings [offset, offset + size) into `memory` (page-aligned, window_bytes(size)); *at is where it begins there.
  int read(uint64_t offset, uint64_t size, uint8_t* memory, const uint8_t** at, ep_error* error) const;
  // Writes `size` bytes at `offset` (page-aligned), both of memory [up(size)], whose rest is overwritten.
  int write(uint64_t offset, uint64_t size, uint8_t* memory, ep_error* error) const;
  // Writes to the disk what write left in the page cache of [offset, offset + size), and drops it.
  void settle(uint64_t offset, uint64_t size) const;
  // Cuts off what a direct write wrote behind the end.
  int cut(uint64_t size, ep_error* error) const;

 private:
  int io_error(int number, uint64_t offset, bool writing, ep_error* error) const;

  const ep_role role_;
  int descriptor_ = -1;
  bool own_ = false;
  bool direct_ = false;
};

}  // namespace engram
