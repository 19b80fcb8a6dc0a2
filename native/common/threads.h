// Locks, and threads that leave the process's signals to it.
#pragma once

#include <pthread.h>
#include <stdint.h>

namespace engram {

class Mutex {
 public:
  Mutex() { pthread_mutex_init(&mutex_, nullptr); }
  ~Mutex() { pthread_mutex_destroy(&mutex_); }
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }
  pthread_mutex_t* raw() { return &mutex_; }

 private:
  pthread_mutex_t mutex_;
};

class Lock {
 public:
  explicit Lock(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

class Condition {
 public:
  Condition();
  ~Condition() { pthread_cond_destroy(&condition_); }
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  void wait(Mutex& mutex) { pthread_cond_wait(&condition_, mutex.raw()); }
  // Until it is signalled or the monotonic clock has passed `until_ns`.
  void wait_until(Mutex& mutex, uint64_t until_ns);
  void signal() { pthread_cond_signal(&condition_); }
  void broadcast() { pthread_cond_broadcast(&condition_); }

 private:
  pthread_cond_t condition_;
};

// A thread that blocks all signals. 0 or the errno.
int start_thread(pthread_t* thread, void* (*main)(void*), void* argument);

uint64_t now_ns();
void nap_us(long microseconds);

}  // namespace engram
