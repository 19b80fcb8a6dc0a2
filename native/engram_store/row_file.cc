#include "row_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace engram {
namespace {

constexpr uint64_t kMagic = 0x31344E4531565344;
constexpr int kFields = 6;
const char* const kFieldNames[kFields] = {"magic", "layer", "first row", "end row", "total rows", "row bytes"};

uint64_t little_endian(const uint8_t* at) {
  uint64_t value = 0;
  for (int index = 7; index >= 0; --index) value = value << 8 | at[index];
  return value;
}

int64_t pread_again(int descriptor, void* into, size_t size, uint64_t offset) {
  for (;;) {
    const ssize_t got = pread(descriptor, into, size, static_cast<off_t>(offset));
    if (got >= 0) return got;
    if (errno != EINTR) return -errno;
  }
}

}  // namespace

RowFile::~RowFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  free(path_);
}

int RowFile::open(const char* path, bool allow_buffered, es_error* error) {
  path_ = strdup(path);
  if (path_ == nullptr) return fail(error, {ES_MEMORY, "no memory", path});
  // O_NONBLOCK: a FIFO under this name must not hold the start; for a regular file it means nothing.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  descriptor_ = ::open(path, kFlags | O_DIRECT);
  direct_ = descriptor_ >= 0;
  if (!direct_) {
    const int why = errno;
    if (why != EINVAL) return fail(error, {ES_OPEN, "the file cannot be opened", path_, -1, why, -1, -1, "a readable file"});
    descriptor_ = ::open(path, kFlags);
    if (descriptor_ < 0) return fail(error, {ES_OPEN, "the file cannot be opened", path_, -1, errno, -1, -1, "a readable file"});
  }
  struct stat status;
  if (fstat(descriptor_, &status) != 0) {
    return fail(error, {ES_OPEN, "the file cannot be looked at", path_, -1, errno, -1, -1, "its size"});
  }
  if (!S_ISREG(status.st_mode)) {
    const char* kind = S_ISDIR(status.st_mode) ? "a directory" : "a special file";
    return fail(error, {ES_KIND, "it is no regular file", path_, -1, 0, -1, -1, "a regular file", kind});
  }
  fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);  // io_uring would not wait for the disk
  if (!direct_ && !allow_buffered) {
    return fail(error, {ES_NO_DIRECT, "the file system refuses O_DIRECT", path_, -1, EINVAL, -1, -1, "direct reads"});
  }
  file_bytes_ = static_cast<uint64_t>(status.st_size);
  return ES_OK;
}

int RowFile::open_packed(const char* path, const es_options& options, bool allow_longer, es_error* error) {
  packed_ = true;
  first_ = options.first;
  if (const int code = open(path, false, error)) return code;
  const uint64_t needed = kHeaderBytes + kRowBytes * (options.end - options.first);
  if (file_bytes_ < kHeaderBytes) {
    return fail(error, {ES_HEADER, "the file has no header", path_, 0, 0, static_cast<int64_t>(kHeaderBytes),
                        static_cast<int64_t>(file_bytes_)});
  }
  if (const int code = check_header(options, error)) return code;
  if (file_bytes_ < needed || (file_bytes_ > needed && !allow_longer)) {
    return fail(error, {ES_SIZE, file_bytes_ < needed ? "the file is truncated" : "the file is too long", path_, -1, 0,
                        static_cast<int64_t>(needed), static_cast<int64_t>(file_bytes_)});
  }
  return check_holes(error);
}

int RowFile::check_header(const es_options& options, es_error* error) const {
  Pages page;
  if (!page.allocate(kHeaderBytes)) return fail(error, {ES_MEMORY, "no memory", path_});
  const int64_t got = pread_again(descriptor_, page.data(), kHeaderBytes, 0);
  if (got == -EINVAL) {  // some file systems let it open and refuse the read
    return fail(error, {ES_NO_DIRECT, "the file system refuses O_DIRECT", path_, 0, EINVAL, -1, -1, "direct reads"});
  }
  if (got < 0) return fail(error, {ES_READ, "the header cannot be read", path_, 0, static_cast<int>(-got), -1, -1, "4096 bytes"});
  if (got < static_cast<int64_t>(kHeaderBytes)) {
    return fail(error, {ES_HEADER, "the file has no header", path_, 0, 0, static_cast<int64_t>(kHeaderBytes), got});
  }
  const uint64_t expected[kFields] = {kMagic, options.layer, options.first, options.end, options.total, kRowBytes};
  for (int field = 0; field < kFields; ++field) {
    const uint64_t observed = little_endian(page.data() + 8 * field);
    if (observed == expected[field]) continue;
    char what[64], wanted[32], seen[32];
    snprintf(what, sizeof what, "the header's %s is wrong", kFieldNames[field]);
    snprintf(wanted, sizeof wanted, "%llu", static_cast<unsigned long long>(expected[field]));
    snprintf(seen, sizeof seen, "%llu", static_cast<unsigned long long>(observed));
    return fail(error, {ES_HEADER, what, path_, 8 * field, 0, static_cast<int64_t>(expected[field]),
                        static_cast<int64_t>(observed), wanted, seen});
  }
  for (uint64_t at = 8 * kFields; at < kHeaderBytes; ++at) {
    if (page.data()[at] != 0) {
      return fail(error, {ES_HEADER, "the header's rest is not zero", path_, static_cast<int64_t>(at), 0, 0, page.data()[at]});
    }
  }
  return ES_OK;
}

// A range that was never written reads as rows of zeros, which no later check could tell from rows. A packed shard is
// written whole, so it has none; a file system that cannot tell says that there are none.
int RowFile::check_holes(es_error* error) const {
  const off_t hole = lseek(descriptor_, 0, SEEK_HOLE);
  if (hole < 0 || static_cast<uint64_t>(hole) >= file_bytes_) return ES_OK;
  return fail(error, {ES_HOLES, "the file has a hole", path_, hole, 0, -1, -1, "rows that were written",
                      "a range that was never written"});
}

int RowFile::open_checkpoint(const char* path, uint64_t weight_at, uint64_t scale_at, const es_options& options,
                             bool allow_buffered, es_error* error) {
  weight_at_ = weight_at;
  scale_at_ = scale_at;
  if (const int code = open(path, allow_buffered, error)) return code;
  uint64_t weight_end = 0, scale_end = 0;
  if (__builtin_add_overflow(weight_at, kWeightBytes * options.total, &weight_end) ||
      __builtin_add_overflow(scale_at, kScaleBytes * options.total, &scale_end)) {
    return fail(error, {ES_ARGUMENT, "the tables end beyond any file", path_});
  }
  const uint64_t needed = weight_end > scale_end ? weight_end : scale_end;
  if (file_bytes_ < needed) {
    return fail(error, {ES_SIZE, "the file is truncated", path_, -1, 0, static_cast<int64_t>(needed),
                        static_cast<int64_t>(file_bytes_)});
  }
  return ES_OK;
}

void RowFile::locate(uint64_t row, uint8_t* into, Piece* pieces) const {
  if (packed_) {
    pieces[0] = {kHeaderBytes + kRowBytes * (row - first_), kRowBytes, into};
    return;
  }
  pieces[0] = {weight_at_ + kWeightBytes * row, kWeightBytes, into};
  pieces[1] = {scale_at_ + kScaleBytes * row, kScaleBytes, into + kWeightBytes};
}

int RowFile::read(const Piece& piece, uint8_t* window, uint64_t* bytes, es_error* error) const {
  const Span span(piece);
  return take(piece, window, pread_again(descriptor_, window, span.size, span.start), bytes, error);
}

int RowFile::take(const Piece& piece, const uint8_t* window, int64_t result, uint64_t* bytes, es_error* error) const {
  const Span span(piece);
  const int64_t offset = static_cast<int64_t>(piece.offset);
  if (result < 0) {
    return fail(error, {ES_READ, "a read failed", path_, offset, static_cast<int>(-result), piece.length, -1, nullptr});
  }
  if (result < span.needed) {
    const int64_t got = result > span.inside ? result - span.inside : 0;
    return fail(error, {ES_SHORT, "a read ended early", path_, offset, 0, piece.length, got});
  }
  memcpy(piece.into, window + span.inside, piece.length);
  *bytes += static_cast<uint64_t>(result);
  return ES_OK;
}

}  // namespace engram
