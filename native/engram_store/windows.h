// Read windows that callers borrow for one call.
#pragma once

#include "support.h"

namespace engram {

class Windows {
 public:
  ~Windows() {
    for (Window* window = free_; window != nullptr;) {
      Window* next = window->next;
      delete window;
      window = next;
    }
  }

  struct Window : OnHeap {
    Pages pages;
    Window* next = nullptr;
  };

  // Null when there is no memory. There are never more than callers at one time.
  Window* borrow();
  void give_back(Window* window);

 private:
  Mutex mutex_;
  Window* free_ = nullptr;
};

}  // namespace engram
