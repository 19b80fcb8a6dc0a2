#include "thread_pool.h"

#include <unistd.h>

#include <algorithm>

namespace engram {
namespace {

// Held by a process, not by a thread: what a fork copied as held is free in the child.
class ProcessLock {
 public:
  ProcessLock() {
    const pid_t mine = getpid();
    for (;;) {
      pid_t holder = holder_.load(std::memory_order_relaxed);
      if (holder != mine && holder_.compare_exchange_weak(holder, mine, std::memory_order_acquire)) return;
      nap_us(50);
    }
  }
  ~ProcessLock() { holder_.store(0, std::memory_order_release); }
  ProcessLock(const ProcessLock&) = delete;
  ProcessLock& operator=(const ProcessLock&) = delete;

 private:
  static std::atomic<pid_t> holder_;
};

std::atomic<pid_t> ProcessLock::holder_{0};
ThreadPool* current = nullptr;  // under that lock; a child's copy of its parent's is let lie

}  // namespace

int ThreadPool::join(uint32_t helpers, const char* path, ThreadPool** pool, es_error* error) {
  const ProcessLock lock;
  if (current == nullptr || current->owner_ != getpid()) {
    current = new ThreadPool;
    if (current == nullptr) return fail(error, {ES_MEMORY, "no memory for the readers", path});
    current->owner_ = getpid();
  }
  const int code = current->grow(helpers, path, error);
  if (code == ES_OK) {
    ++current->users_;
    *pool = current;
  } else if (current->users_ == 0) {
    delete current;
    current = nullptr;
  }
  return code;
}

void ThreadPool::leave(ThreadPool* pool) {
  const ProcessLock lock;
  if (--pool->users_ > 0) return;
  delete pool;
  current = nullptr;
}

ThreadPool::~ThreadPool() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    work_.broadcast();
  }
  for (uint32_t index = 0; index < started_; ++index) pthread_join(threads_[index], nullptr);
}

int ThreadPool::grow(uint32_t helpers, const char* path, es_error* error) {
  helpers = std::min(helpers, kMost);
  while (started_ < helpers) {
    const int why = start_thread(&threads_[started_], &ThreadPool::serve, this);
    if (why != 0) {
      return fail(error, {ES_MEMORY, "a reader thread cannot be started", path, -1, why, helpers, started_});
    }
    ++started_;
  }
  return ES_OK;
}

void ThreadPool::run(Job& job, uint8_t* window) {
  if (job.most_helpers > 0) {
    const Lock lock(mutex_);
    append(job);
    for (uint64_t woken = std::min<uint64_t>(job.count - 1, job.most_helpers); woken > 0; --woken) work_.signal();
  }
  work_on(job, window);
  if (job.most_helpers == 0) return;
  const Lock lock(mutex_);
  remove(job);
  while (job.helpers > 0) job.left.wait(mutex_);
}

void* ThreadPool::serve(void* self) {
  static_cast<ThreadPool*>(self)->serve_jobs();
  return nullptr;
}

void ThreadPool::serve_jobs() {
  Pages window;
  if (!window.allocate(kWindow)) return;  // the others do the work
  mutex_.lock();
  for (;;) {
    Job* job = next_job();
    if (stopping_) break;
    if (job == nullptr) {
      work_.wait(mutex_);
      continue;
    }
    ++job->helpers;
    mutex_.unlock();
    work_on(*job, window.data());
    mutex_.lock();
    remove(*job);  // nothing of it is left to begin
    if (--job->helpers == 0) job->left.signal();
  }
  mutex_.unlock();
}

void ThreadPool::work_on(Job& job, uint8_t* window) {
  uint64_t bytes = 0;
  for (;;) {
    const uint64_t ticket = job.next.fetch_add(1, std::memory_order_relaxed);
    if (ticket >= job.count) break;
    es_error mine;
    const int code = job.file.read(job.pieces[ticket], window, &bytes, &mine);
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

Job* ThreadPool::next_job() const {
  Job* job = first_;
  while (job != nullptr && job->helpers >= job->most_helpers) job = job->behind;
  return job;
}

void ThreadPool::append(Job& job) {
  job.queued = true;
  Job** end = &first_;
  while (*end != nullptr) end = &(*end)->behind;
  *end = &job;
}

void ThreadPool::remove(Job& job) {
  if (!job.queued) return;
  Job** link = &first_;
  while (*link != &job) link = &(*link)->behind;
  *link = job.behind;
  job.queued = false;
}

}  // namespace engram
