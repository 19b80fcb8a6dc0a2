#include "heap.h"

#include <sys/mman.h>

namespace engram {

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

bool Pages::allocate(uint64_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return false;
  madvise(pages, bytes, MADV_DONTFORK);
  data_ = static_cast<uint8_t*>(pages);
  bytes_ = bytes;
  return true;
}

void Pages::leave() { data_ = nullptr; }

}  // namespace engram
