#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "heap.h"

namespace engram {
namespace {

int64_t pread_again(int descriptor, uint8_t* into, uint64_t size, uint64_t offset) {
  for (;;) {
    const ssize_t got = pread(descriptor, into, size, static_cast<off_t>(offset));
    if (got >= 0) return got;
    if (errno != EINTR) return -errno;
  }
}

int64_t pwrite_again(int descriptor, const uint8_t* from, uint64_t size, uint64_t offset) {
  for (;;) {
    const ssize_t put = pwrite(descriptor, from, size, static_cast<off_t>(offset));
    if (put >= 0) return put;
    if (errno != EINTR) return -errno;
  }
}

// The same file, opened for itself.
int open_again(int descriptor, int flags) {
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  return open(path, flags | O_CLOEXEC | O_NOCTTY);
}

}  // namespace

File::~File() {
  if (own_) close(descriptor_);
}

void File::open_to_read(int descriptor) {
  descriptor_ = open_again(descriptor, O_RDONLY | O_DIRECT);
  Pages probe;
  // Some file systems let it open and refuse the read.
  own_ = direct_ = descriptor_ >= 0 && probe.allocate(kPage) && pread_again(descriptor_, probe.data(), kPage, 0) >= 0;
  if (direct_) return;
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = open_again(descriptor, O_RDONLY);
  own_ = descriptor_ >= 0;
  if (!own_) descriptor_ = descriptor;
  // Read-ahead would bring pages after they were dropped, for another lane has been there already.
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);
}

int File::open_to_write(int descriptor, uint64_t size, ep_error* error) {
  descriptor_ = descriptor;
  int why = 0;
  do {
    why = fallocate(descriptor, 0, 0, static_cast<off_t>(size)) == 0 ? 0 : errno;
  } while (why == EINTR);
  if (why != 0 && why != EOPNOTSUPP && why != ENOSYS && why != EINVAL) return io_error(why, 0, true, error);
  const int other = open_again(descriptor, O_WRONLY | O_DIRECT);
  Pages probe;
  if (other >= 0 && probe.allocate(kPage) && pwrite_again(other, probe.data(), kPage, 0) == kPage) {
    own_ = direct_ = true;
    descriptor_ = other;
  } else if (other >= 0) {
    close(other);
  }
  return EP_OK;
}

int File::read(uint64_t offset, uint64_t size, uint8_t* memory, const uint8_t** at, ep_error* error) const {
  const uint64_t start = down(offset), before = offset - start, needed = before + size, whole = up(needed);
  *at = memory + before;
  uint64_t got = 0;
  while (got < needed) {
    const int64_t more = pread_again(descriptor_, memory + got, whole - got, start + got);
    if (more < 0) return io_error(static_cast<int>(-more), start + got, false, error);
    got += static_cast<uint64_t>(more);
    if (more == 0 || (direct_ && got % kPage != 0)) break;  // the end; a direct read cannot go on from there
  }
  if (!direct_) posix_fadvise(descriptor_, static_cast<off_t>(start), static_cast<off_t>(down(needed)), POSIX_FADV_DONTNEED);
  if (got >= needed) return EP_OK;
  const int64_t there = got > before ? static_cast<int64_t>(got - before) : 0;
  *error = {EP_SHORT, 0, role_, 0, static_cast<int64_t>(offset), static_cast<int64_t>(size), there};
  return EP_SHORT;
}

int File::write(uint64_t offset, uint64_t size, uint8_t* memory, ep_error* error) const {
  const uint64_t whole = direct_ ? up(size) : size;
  memset(memory + size, 0, whole - size);
  for (uint64_t put = 0; put < whole;) {
    const int64_t more = pwrite_again(descriptor_, memory + put, whole - put, offset + put);
    if (more <= 0) return io_error(more < 0 ? static_cast<int>(-more) : ENOSPC, offset + put, true, error);
    put += static_cast<uint64_t>(more);
  }
  // The disk begins now; `settle` waits for it later.
  if (!direct_) sync_file_range(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(size), SYNC_FILE_RANGE_WRITE);
  return EP_OK;
}

void File::settle(uint64_t offset, uint64_t size) const {
  if (direct_ || size == 0) return;
  constexpr unsigned kAll = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  // An error of the disk stays with the file and is told by the caller's fsync.
  sync_file_range(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(size), kAll);
  posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(up(size)), POSIX_FADV_DONTNEED);
}

int File::cut(uint64_t size, ep_error* error) const {
  if (!direct_ || (size > 0 && size % kPage == 0)) return EP_OK;  // of an empty one the first try is left
  return ftruncate(descriptor_, static_cast<off_t>(size)) == 0 ? EP_OK : io_error(errno, size, true, error);
}

int File::io_error(int number, uint64_t offset, bool writing, ep_error* error) const {
  *error = {EP_IO, number, role_, writing ? 1 : 0, static_cast<int64_t>(offset), 0, 0};
  return EP_IO;
}

}  // namespace engram
