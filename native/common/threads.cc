#include "threads.h"

#include <limits.h>
#include <signal.h>
#include <time.h>

namespace engram {

Condition::Condition() {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&condition_, &attributes);
  pthread_condattr_destroy(&attributes);
}

void Condition::wait_until(Mutex& mutex, uint64_t until_ns) {
  const timespec until{static_cast<time_t>(until_ns / 1000000000u), static_cast<long>(until_ns % 1000000000u)};
  pthread_cond_timedwait(&condition_, mutex.raw(), &until);
}

int start_thread(pthread_t* thread, void* (*main)(void*), void* argument) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  size_t stack = 256 * 1024;  // a sanitizer's needs; what is not touched costs nothing
  if (stack < static_cast<size_t>(PTHREAD_STACK_MIN)) stack = static_cast<size_t>(PTHREAD_STACK_MIN);
  pthread_attr_setstacksize(&attributes, stack);
  // Signals of the process are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int why = pthread_create(thread, &attributes, main, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return why;
}

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

void nap_us(long microseconds) {
  timespec pause{0, microseconds * 1000};
  nanosleep(&pause, nullptr);
}

}  // namespace engram
