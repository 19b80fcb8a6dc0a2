// Work in units that lanes (threads with buffers of their own) take in order. A lane waits for the disk as it likes and
// needs one of `threads` permits to compute: so reading, computing and writing of different lanes overlap.
#pragma once

#include <atomic>

#include "engram_pack.h"
#include "heap.h"
#include "threads.h"

namespace engram {

class Job : public OnHeap {
 public:
  Job(const ep_limits& limits, uint64_t total, uint64_t units) : limits_(limits), total_(total), units_(units) {}
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Opens the files. Before `start`.
  virtual int open(ep_error* error) = 0;
  int start(ep_error* error);
  bool wait(uint32_t milliseconds);
  // Cancels and joins; the answer of the whole.
  int finish(ep_error* error);
  virtual void describe(ep_state* state) const = 0;

 protected:
  // Bytes of a lane's buffers, whole pages.
  virtual uint64_t lane_bytes() const = 0;
  // One unit; asks `stopped` between reads and writes, and reports what fails.
  virtual void work(uint64_t unit, uint8_t* memory) = 0;
  // After the last unit when all went well.
  virtual int complete(ep_error*) { return EP_OK; }

  // Whether nothing that this unit does is wanted any more.
  bool stopped(uint64_t unit) const {
    return cancelled_.load(std::memory_order_relaxed) || unit > failed_.load(std::memory_order_relaxed);
  }
  void report(uint64_t unit, const ep_error& error);
  void done(uint64_t bytes) { done_.fetch_add(bytes, std::memory_order_relaxed); }
  // Waits until `bytes` more are within the rate.
  void pace(uint64_t unit, uint64_t bytes);
  void fill(ep_state* state) const { *state = {done_.load(std::memory_order_relaxed), total_, 0, 0}; }

  class Permit {
   public:
    explicit Permit(Job& job) : job_(job) { job_.take_permit(); }
    ~Permit() { job_.give_permit(); }
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;

   private:
    Job& job_;
  };

 private:
  static constexpr uint32_t kMaxLanes = 512;

  static void* serve(void* self);
  void serve_units();
  void take_permit();
  void give_permit();
  void join();

  const ep_limits limits_;
  const uint64_t total_;
  const uint64_t units_;
  Pages memory_;
  pthread_t threads_[kMaxLanes];
  uint32_t started_ = 0;
  std::atomic<uint32_t> lane_{0};
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> failed_{UINT64_MAX};  // the first unit that failed
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  Condition ended_;
  Condition permitted_;
  uint32_t running_ = 0;
  uint32_t permits_ = 0;
  uint64_t free_at_ns_ = 0;  // when the bytes so far are within the rate
  ep_error error_{};
};

}  // namespace engram
