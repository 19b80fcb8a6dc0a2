// The opened file: which bytes of it make a row, checked before the first row is read.
#pragma once

#include "support.h"

namespace engram {

// `length` bytes at `offset` of the file, wanted at `into`. offset % 4096 + length <= 8192.
struct Piece {
  uint64_t offset;
  uint32_t length;
  uint8_t* into;
};

// The page-aligned part of the file around a piece: what is read.
struct Span {
  explicit Span(const Piece& piece)
      : start(piece.offset & ~(kPage - 1)),
        inside(static_cast<uint32_t>(piece.offset - start)),
        needed(inside + piece.length),
        size(needed <= kPage ? kPage : kWindow) {}
  uint64_t start;
  uint32_t inside;
  uint32_t needed;  // bytes of the read that the piece ends at
  uint32_t size;
};

class RowFile {
 public:
  RowFile() = default;
  ~RowFile();
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  int open_packed(const char* path, const es_options& options, bool allow_longer, es_error* error);
  int open_checkpoint(const char* path, uint64_t weight_at, uint64_t scale_at, const es_options& options,
                      bool allow_buffered, es_error* error);

  uint32_t pieces_of_a_row() const { return packed_ ? 1 : 2; }
  // Fills pieces[0 .. pieces_of_a_row()) for an owned row.
  void locate(uint64_t row, uint8_t* into, Piece* pieces) const;

  // One read into a window of 8192 bytes; copies the piece out of it and adds to *bytes what the read brought.
  int read(const Piece& piece, uint8_t* window, uint64_t* bytes, es_error* error) const;
  // Judges `result` (bytes or -errno) of a read that was made elsewhere.
  int take(const Piece& piece, const uint8_t* window, int64_t result, uint64_t* bytes, es_error* error) const;

  int descriptor() const { return descriptor_; }
  bool direct() const { return direct_; }
  uint64_t file_bytes() const { return file_bytes_; }
  const char* path() const { return path_; }

 private:
  int open(const char* path, bool allow_buffered, es_error* error);
  int check_header(const es_options& options, es_error* error) const;
  int check_holes(es_error* error) const;

  int descriptor_ = -1;
  bool direct_ = false;
  bool packed_ = false;
  char* path_ = nullptr;
  uint64_t file_bytes_ = 0;
  uint64_t first_ = 0;
  uint64_t weight_at_ = 0;
  uint64_t scale_at_ = 0;
};

}  // namespace engram
