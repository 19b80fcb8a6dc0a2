// Reads by blocking threads of the process's pool and by the caller.
#include "reader.h"
#include "thread_pool.h"
#include "windows.h"

namespace engram {

Windows::Window* Windows::borrow() {
  {
    const Lock lock(mutex_);
    if (free_ != nullptr) {
      Window* window = free_;
      free_ = window->next;
      return window;
    }
  }
  Window* window = new Window;
  if (window != nullptr && !window->pages.allocate(kWindow)) {
    delete window;
    return nullptr;
  }
  return window;
}

void Windows::give_back(Window* window) {
  const Lock lock(mutex_);
  window->next = free_;
  free_ = window;
}

namespace {

constexpr uint64_t kSerialBelow = 8;  // few pieces are read one after the other: waking a thread costs more than a read

class ThreadReader final : public Reader {
 public:
  ThreadReader(const RowFile& file, uint32_t threads) : file_(file), helpers_(threads - 1) {}
  int start(es_error* error) { return ThreadPool::join(helpers_, file_.path(), &pool_, error); }
  ~ThreadReader() override {
    if (pool_ != nullptr) ThreadPool::leave(pool_);
  }

  int read(const Piece* pieces, uint64_t count, uint64_t* bytes, es_error* error) override {
    Windows::Window* window = windows_.borrow();
    if (window == nullptr) return fail(error, {ES_MEMORY, "no memory for a read", file_.path()});
    Job job(file_, pieces, count, count < kSerialBelow ? 0 : helpers_);
    job.error = error;
    pool_->run(job, window->pages.data());
    windows_.give_back(window);
    *bytes += job.bytes.load(std::memory_order_relaxed);
    return job.code;
  }

  int backend() const override { return ES_THREADS; }
  void forget() override {}  // the pool is of the parent

 private:
  const RowFile& file_;
  const uint32_t helpers_;
  ThreadPool* pool_ = nullptr;
  Windows windows_;
};

}  // namespace

int make_thread_reader(const RowFile& file, uint32_t threads, Reader** reader, es_error* error) {
  ThreadReader* made = new ThreadReader(file, threads);
  if (made == nullptr) return fail(error, {ES_MEMORY, "no memory for the readers", file.path()});
  if (const int code = made->start(error)) {
    delete made;
    return code;
  }
  *reader = made;
  return ES_OK;
}

}  // namespace engram
