// How pieces of a file are read: through io_uring, or by threads. Both are chosen at run time.
#pragma once

#include "row_file.h"

namespace engram {

class Reader : public OnHeap {
 public:
  virtual ~Reader() = default;
  // Reads all pieces; adds what the reads brought to *bytes. From any thread. After an error no read is in flight.
  virtual int read(const Piece* pieces, uint64_t count, uint64_t* bytes, es_error* error) = 0;
  virtual int backend() const = 0;
  // In a child process: gives back descriptors and touches nothing else.
  virtual void forget() = 0;
};

// Each sets *reader or returns an error. io_uring that the kernel, a seccomp filter or the file refuses is ES_BACKEND.
int make_uring_reader(const RowFile& file, uint32_t depth, Reader** reader, es_error* error);
int make_thread_reader(const RowFile& file, uint32_t threads, Reader** reader, es_error* error);

}  // namespace engram
