// Reads by blocking threads. One piece is a ticket; whoever is free takes the next one.
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <atomic>

#include "reader.h"
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

struct Job {
  Job(const Piece* pieces_of, uint64_t pieces_count) : pieces(pieces_of), count(pieces_count) {}
  const Piece* pieces;
  uint64_t count;
  std::atomic<uint64_t> next{0};
  std::atomic<uint64_t> bytes{0};
  // Below: under the pool's mutex.
  uint32_t helpers = 0;
  Job* behind = nullptr;
  bool queued = false;
  Condition left;
  int code = ES_OK;
  es_error* error = nullptr;  // the caller's; filled by the first that fails
};

class ThreadReader final : public Reader {
 public:
  explicit ThreadReader(const RowFile& file) : file_(file) {}

  int start(uint32_t threads, es_error* error) {
    threads_ = static_cast<pthread_t*>(calloc(threads, sizeof(pthread_t)));
    if (threads_ == nullptr) return fail(error, {ES_MEMORY, "no memory for the readers", file_.path()});
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    size_t stack = 256 * 1024;  // a sanitizer's needs; what is not touched costs nothing
    if (stack < static_cast<size_t>(PTHREAD_STACK_MIN)) stack = static_cast<size_t>(PTHREAD_STACK_MIN);
    pthread_attr_setstacksize(&attributes, stack);
    // Signals of the process are for its own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = 0;
    while (why == 0 && started_ + 1 < threads) {
      why = pthread_create(&threads_[started_], &attributes, &ThreadReader::serve, this);
      if (why == 0) ++started_;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    if (why == 0) return ES_OK;
    return fail(error, {ES_MEMORY, "a reader thread cannot be started", file_.path(), -1, why,
                        static_cast<int64_t>(threads) - 1, static_cast<int64_t>(started_)});
  }

  ~ThreadReader() override {
    {
      const Lock lock(mutex_);
      stopping_ = true;
      work_.broadcast();
    }
    for (uint32_t index = 0; index < started_; ++index) pthread_join(threads_[index], nullptr);
    free(threads_);
  }

  int read(const Piece* pieces, uint64_t count, uint64_t* bytes, es_error* error) override {
    Windows::Window* window = windows_.borrow();
    if (window == nullptr) return fail(error, {ES_MEMORY, "no memory for a read", file_.path()});
    Job job(pieces, count);
    job.error = error;
    if (started_ == 0 || count < kSerialBelow) {
      work_on(job, window->pages.data());
    } else {
      {
        const Lock lock(mutex_);
        append(job);
        if (count - 1 >= started_) {
          work_.broadcast();
        } else {
          for (uint64_t index = 1; index < count; ++index) work_.signal();
        }
      }
      work_on(job, window->pages.data());
      const Lock lock(mutex_);
      remove(job);
      while (job.helpers > 0) job.left.wait(mutex_);
    }
    windows_.give_back(window);
    *bytes += job.bytes.load(std::memory_order_relaxed);
    return job.code;
  }

  int backend() const override { return ES_THREADS; }
  void forget() override {}

 private:
  static void* serve(void* self) {
    static_cast<ThreadReader*>(self)->serve_jobs();
    return nullptr;
  }

  void serve_jobs() {
    Pages window;
    if (!window.allocate(kWindow)) return;  // the caller does the work alone
    mutex_.lock();
    for (;;) {
      while (first_ == nullptr && !stopping_) work_.wait(mutex_);
      if (stopping_) break;
      Job& job = *first_;
      ++job.helpers;
      mutex_.unlock();
      work_on(job, window.data());
      mutex_.lock();
      remove(job);  // nothing of it is left to begin
      if (--job.helpers == 0) job.left.signal();
    }
    mutex_.unlock();
  }

  void work_on(Job& job, uint8_t* window) {
    uint64_t bytes = 0;
    for (;;) {
      const uint64_t ticket = job.next.fetch_add(1, std::memory_order_relaxed);
      if (ticket >= job.count) break;
      es_error mine;
      const int code = file_.read(job.pieces[ticket], window, &bytes, &mine);
      if (code == ES_OK) continue;
      job.next.store(job.count, std::memory_order_relaxed);
      const Lock lock(mutex_);
      if (job.code == ES_OK) {
        job.code = code;
        if (job.error != nullptr) *job.error = mine;
      }
    }
    job.bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

  void append(Job& job) {
    job.queued = true;
    Job** end = &first_;
    while (*end != nullptr) end = &(*end)->behind;
    *end = &job;
  }

  void remove(Job& job) {
    if (!job.queued) return;
    Job** link = &first_;
    while (*link != &job) link = &(*link)->behind;
    *link = job.behind;
    job.queued = false;
  }

  const RowFile& file_;
  Windows windows_;
  pthread_t* threads_ = nullptr;
  uint32_t started_ = 0;
  Mutex mutex_;
  Condition work_;
  Job* first_ = nullptr;
  bool stopping_ = false;
};

}  // namespace

int make_thread_reader(const RowFile& file, uint32_t threads, Reader** reader, es_error* error) {
  ThreadReader* made = new ThreadReader(file);
  if (made == nullptr) return fail(error, {ES_MEMORY, "no memory for the readers", file.path()});
  if (const int code = made->start(threads, error)) {
    delete made;
    return code;
  }
  *reader = made;
  return ES_OK;
}

}  // namespace engram
