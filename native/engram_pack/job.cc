#include "job.h"

#include <errno.h>

#include <algorithm>

namespace engram {

int Job::start(ep_error* error) {
  const uint64_t each = lane_bytes();
  const uint64_t affordable = limits_.memory_bytes / each;
  if (affordable == 0) {
    *error = {EP_ARGUMENT, 0, EP_NO_FILE, 0, 0, static_cast<int64_t>(each), static_cast<int64_t>(limits_.memory_bytes)};
    return EP_ARGUMENT;
  }
  // Beside those that compute, as many that read or write, and some for a disk that wants more in flight.
  const uint64_t useful = 2 * uint64_t{limits_.threads} + 2;
  const uint64_t lanes = std::min({useful, affordable, units_, uint64_t{kMaxLanes}});
  permits_ = limits_.threads;
  if (lanes == 0) return EP_OK;
  int why = memory_.allocate(lanes * each) ? 0 : ENOMEM;
  running_ = static_cast<uint32_t>(lanes);
  while (why == 0 && started_ < lanes) {
    why = start_thread(&threads_[started_], &Job::serve, this);
    if (why == 0) ++started_;
  }
  if (why == 0) return EP_OK;
  cancelled_ = true;
  join();
  *error = {EP_IO, why, EP_NO_FILE, 0, 0, static_cast<int64_t>(lanes), static_cast<int64_t>(started_)};
  return EP_IO;
}

void* Job::serve(void* self) {
  static_cast<Job*>(self)->serve_units();
  return nullptr;
}

void Job::serve_units() {
  uint8_t* memory = memory_.data() + lane_.fetch_add(1) * lane_bytes();
  for (;;) {
    const uint64_t unit = next_.fetch_add(1, std::memory_order_relaxed);
    if (unit >= units_ || stopped(unit)) break;
    work(unit, memory);
  }
  const Lock lock(mutex_);
  if (--running_ == 0) ended_.broadcast();
}

void Job::report(uint64_t unit, const ep_error& error) {
  const Lock lock(mutex_);
  if (unit >= failed_.load(std::memory_order_relaxed)) return;
  failed_.store(unit, std::memory_order_relaxed);
  error_ = error;
}

void Job::pace(uint64_t unit, uint64_t bytes) {
  if (limits_.bytes_s == 0) return;
  constexpr uint64_t kSliceNs = 20'000'000;
  uint64_t begin_at = 0;
  {
    const Lock lock(mutex_);
    begin_at = std::max(free_at_ns_, now_ns());
    free_at_ns_ = begin_at + static_cast<uint64_t>(static_cast<double>(bytes) * 1e9 / static_cast<double>(limits_.bytes_s));
  }
  for (uint64_t now = now_ns(); now < begin_at && !stopped(unit); now = now_ns()) {
    nap_us(static_cast<long>(std::min(begin_at - now, kSliceNs) / 1000 + 1));
  }
}

void Job::take_permit() {
  const Lock lock(mutex_);
  while (permits_ == 0) permitted_.wait(mutex_);
  --permits_;
}

void Job::give_permit() {
  const Lock lock(mutex_);
  ++permits_;
  permitted_.signal();
}

bool Job::wait(uint32_t milliseconds) {
  const uint64_t until = now_ns() + milliseconds * uint64_t{1'000'000};
  const Lock lock(mutex_);
  while (running_ > 0 && now_ns() < until) ended_.wait_until(mutex_, until);
  return running_ == 0;
}

int Job::finish(ep_error* error) {
  cancelled_ = true;
  join();
  if (failed_.load() != UINT64_MAX) {
    *error = error_;
    return error_.code;
  }
  if (done_.load() < total_) {
    *error = {EP_CANCELLED, 0, EP_NO_FILE, 0, static_cast<int64_t>(done_.load()), static_cast<int64_t>(total_), 0};
    return EP_CANCELLED;
  }
  return complete(error);
}

void Job::join() {
  for (uint32_t index = 0; index < started_; ++index) pthread_join(threads_[index], nullptr);
}

}  // namespace engram
