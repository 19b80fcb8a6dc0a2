// The C interface: handles instead of pointers, so that a store that is closed or of another process is an error.
#include "engram_store.h"

#include <stdio.h>
#include <unistd.h>

#include <atomic>

#include "store.h"

namespace engram {
namespace {

constexpr uint64_t kSlots = 1024;
constexpr uint32_t kMaxDepth = 4096, kMaxThreads = 1024, kMaxWays = 16;

// state: generation << 32 | flags | calls in progress. No lock: a fork while another thread holds one would leave it
// held for ever in the child.
constexpr uint64_t kLive = 1u << 31, kClosing = 1u << 30, kTaken = 1u << 29, kCalls = kTaken - 1;

struct Slot {
  std::atomic<uint64_t> state{0};
  std::atomic<Store*> store{nullptr};
  std::atomic<pid_t> owner{0};
};

Slot slots[kSlots];

uint64_t handle_of(uint64_t index, uint64_t state) { return (state >> 32) * kSlots + index; }
Slot& slot_of(uint64_t handle) { return slots[handle % kSlots]; }
bool is_named(uint64_t state, uint64_t handle) { return state >> 32 == handle / kSlots && (state & kLive) != 0; }

int closed(es_error* error) {
  return fail(error, {ES_CLOSED, "no store has this handle", "", -1, 0, -1, -1, "an open store", "a closed one, or none"});
}

// One call on a store that cannot be closed meanwhile.
class Call {
 public:
  Call(uint64_t handle, es_error* error) : slot_(slot_of(handle)) {
    uint64_t state = slot_.state.load(std::memory_order_acquire);
    for (;;) {
      if (!is_named(state, handle) || (state & kClosing) != 0) {
        code_ = closed(error);
        return;
      }
      const pid_t owner = slot_.owner.load(std::memory_order_relaxed);
      if (owner != getpid()) {
        char wanted[48];
        snprintf(wanted, sizeof wanted, "process %d, which opened it", static_cast<int>(owner));
        code_ = fail(error, {ES_FORKED, "the store belongs to another process", "", -1, 0, -1, getpid(), wanted});
        return;
      }
      if (slot_.state.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) break;
    }
    store_ = slot_.store.load(std::memory_order_relaxed);
  }
  ~Call() {
    if (store_ != nullptr) slot_.state.fetch_sub(1, std::memory_order_release);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  int code() const { return code_; }
  Store* operator->() const { return store_; }

 private:
  Slot& slot_;
  Store* store_ = nullptr;
  int code_ = ES_OK;
};

int wrong(es_error* error, const char* what, const char* expected, uint64_t observed) {
  return fail(error, {ES_ARGUMENT, what, "", -1, 0, -1, static_cast<int64_t>(observed), expected});
}

int check(const char* path, const es_options* options, const uint64_t* handle, es_error* error) {
  if (path == nullptr || options == nullptr || handle == nullptr) {
    return wrong(error, "a pointer is null", "path, options and handle", 0);
  }
  if (options->backend < ES_AUTO || options->backend > ES_THREADS) {
    return wrong(error, "no such backend", "0, 1 or 2", static_cast<uint64_t>(options->backend));
  }
  if (options->depth < 1 || options->depth > kMaxDepth) return wrong(error, "depth is out of range", "1..4096", options->depth);
  if (options->threads < 1 || options->threads > kMaxThreads) {
    return wrong(error, "threads is out of range", "1..1024", options->threads);
  }
  if (options->ways < 1 || options->ways > kMaxWays) return wrong(error, "ways is out of range", "1..16", options->ways);
  if (options->total > INT64_MAX / kRowBytes - kHeaderBytes) return wrong(error, "too many rows", "a table that fits a file", options->total);
  if (options->first > options->end || options->end > options->total) {
    return wrong(error, "the owned rows are no range of the table", "first <= end <= total", options->end);
  }
  return ES_OK;
}

int start(Store* store, const es_options& options, uint64_t* handle, es_error* error) {
  if (const int code = store->start(options, error)) return code;
  for (uint64_t index = 0; index < kSlots; ++index) {
    Slot& slot = slots[index];
    uint64_t state = slot.state.load(std::memory_order_relaxed);
    if ((state & (kLive | kTaken)) != 0) continue;
    if (!slot.state.compare_exchange_strong(state, state | kTaken, std::memory_order_acquire)) continue;
    slot.store.store(store, std::memory_order_relaxed);
    slot.owner.store(getpid(), std::memory_order_relaxed);
    const uint64_t named = ((state >> 32) + 1) << 32 | kLive;
    slot.state.store(named, std::memory_order_release);
    *handle = handle_of(index, named);
    return ES_OK;
  }
  return fail(error, {ES_MEMORY, "too many stores are open", "", -1, 0, static_cast<int64_t>(kSlots), static_cast<int64_t>(kSlots + 1)});
}

template <typename Open>
int open_store(const char* path, const es_options* options, uint64_t* handle, es_error* error, Open open) {
  es_error unwanted;
  if (error == nullptr) error = &unwanted;
  *error = {};
  if (const int code = check(path, options, handle, error)) return code;
  Store* store = new Store;
  if (store == nullptr) return fail(error, {ES_MEMORY, "no memory for a store", path});
  int code = open(store->file());
  if (code == ES_OK) code = start(store, *options, handle, error);
  if (code != ES_OK) delete store;
  return code;
}

}  // namespace
}  // namespace engram

using namespace engram;

extern "C" {

uint32_t es_abi_version(void) { return ES_ABI_VERSION; }

int es_open_packed(const char* path, const es_options* options, int allow_longer, uint64_t* handle, es_error* error) {
  return open_store(path, options, handle, error, [&](RowFile& file) {
    return file.open_packed(path, *options, allow_longer != 0, error);
  });
}

int es_open_checkpoint(const char* path, uint64_t weight_at, uint64_t scale_at, const es_options* options,
                       int allow_buffered, uint64_t* handle, es_error* error) {
  return open_store(path, options, handle, error, [&](RowFile& file) {
    return file.open_checkpoint(path, weight_at, scale_at, *options, allow_buffered != 0, error);
  });
}

int es_fetch(uint64_t handle, const int64_t* ids, size_t count, uint8_t* out, es_error* error) {
  es_error unwanted;
  if (error == nullptr) error = &unwanted;
  Call call(handle, error);
  if (call.code() != ES_OK) return call.code();
  if (count > 0 && (ids == nullptr || out == nullptr)) return wrong(error, "a pointer is null", "ids and out", 0);
  if (count > INT64_MAX / kRowBytes) return wrong(error, "too many ids", "a call that fits memory", count);
  return call->fetch(ids, count, out, error);
}

int es_describe(uint64_t handle, es_info* info, es_error* error) {
  Call call(handle, error);
  if (call.code() != ES_OK) return call.code();
  if (info == nullptr) return wrong(error, "a pointer is null", "info", 0);
  call->describe(info);
  return ES_OK;
}

int es_count(uint64_t handle, es_counters* counters, es_error* error) {
  Call call(handle, error);
  if (call.code() != ES_OK) return call.code();
  if (counters == nullptr) return wrong(error, "a pointer is null", "counters", 0);
  call->count(counters);
  return ES_OK;
}

int es_close(uint64_t handle, es_error* error) {
  Slot& slot = slot_of(handle);
  uint64_t state = slot.state.load(std::memory_order_acquire);
  do {
    if (!is_named(state, handle) || (state & kClosing) != 0) return closed(error);
  } while (!slot.state.compare_exchange_weak(state, state | kClosing, std::memory_order_acquire));
  Store* store = slot.store.load(std::memory_order_relaxed);
  if (slot.owner.load(std::memory_order_relaxed) == getpid()) {
    while ((slot.state.load(std::memory_order_acquire) & kCalls) != 0) nap_us(50);
    delete store;
  } else {
    store->forget();  // calls of the parent's threads are counted in the child for ever
  }
  slot.state.store(state >> 32 << 32, std::memory_order_release);
  return ES_OK;
}

}  // extern "C"
