#include "store.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

namespace engram {
namespace {

struct Missing {
  int64_t id;
  uint64_t index;  // in the call
};

uint32_t bucket_of(uint64_t nanoseconds) {
  const uint64_t microseconds = nanoseconds / 1000;
  const uint32_t bits = microseconds == 0 ? 0 : 64 - static_cast<uint32_t>(__builtin_clzll(microseconds));
  return std::min<uint32_t>(bits, ES_LATENCY_BUCKETS - 1);
}

}  // namespace

Store::~Store() {
  delete instead_.load(std::memory_order_relaxed);
  delete reader_;
}

int Store::start(const es_options& options, es_error* error) {
  first_ = options.first;
  end_ = options.end;
  const uint64_t sets = RowCache::sets_for(options.cache_bytes, options.ways, end_ - first_);
  if (sets > 0 && !cache_.allocate(sets, options.ways)) {
    return fail(error, {ES_MEMORY, "no memory for the cache", file_.path(), -1, 0, static_cast<int64_t>(options.cache_bytes)});
  }
  if (options.backend != ES_THREADS) {
    const int code = make_uring_reader(file_, options.depth, &reader_, error);
    if (code == ES_OK && options.backend != ES_IO_URING) spare_threads_ = options.threads;
    if (code == ES_OK || options.backend == ES_IO_URING) return code;
    snprintf(why_, sizeof why_, "%.255s", error->text);
  }
  return make_thread_reader(file_, options.threads, &reader_, error);
}

int Store::check_ids(const int64_t* ids, uint64_t count, es_error* error) const {
  for (uint64_t index = 0; index < count; ++index) {
    const int64_t id = ids[index];
    if (id >= 0 && static_cast<uint64_t>(id) >= first_ && static_cast<uint64_t>(id) < end_) continue;
    char what[64], wanted[64];
    snprintf(what, sizeof what, "row id %llu of the call is not owned", static_cast<unsigned long long>(index));
    snprintf(wanted, sizeof wanted, "an id in [%llu, %llu)", static_cast<unsigned long long>(first_),
             static_cast<unsigned long long>(end_));
    return fail(error, {ES_ID, what, file_.path(), -1, 0, -1, id, wanted});
  }
  return ES_OK;
}

int Store::fetch(const int64_t* ids, uint64_t count, uint8_t* out, es_error* error) {
  const uint64_t began = now_ns();
  if (const int code = check_ids(ids, count, error)) return code;
  uint64_t rows = count, bytes = 0;
  const int code = cache_.sets() == 0 ? read_all(ids, count, out, &bytes, error)
                                      : read_missing(ids, count, out, &rows, &bytes, error);
  if (code != ES_OK) return code;
  const uint32_t bucket = bucket_of(now_ns() - began);
  const Lock lock(mutex_);
  ++counters_.calls;
  counters_.lookups += count;
  counters_.hits += count - rows;
  counters_.reads += rows * file_.pieces_of_a_row();
  counters_.bytes += bytes;
  if (rows > 0) ++counters_.latency[bucket];
  return ES_OK;
}

int Store::read(const Piece* pieces, uint64_t count, uint64_t* bytes, es_error* error) {
  Reader* reader = instead_.load(std::memory_order_acquire);
  if (reader != nullptr) return reader->read(pieces, count, bytes, error);
  const int code = reader_->read(pieces, count, bytes, error);
  if (code != ES_BACKEND || spare_threads_ == 0) return code;
  // No ring could be made, so nothing was read; rings count against memory that other processes lock as well.
  if (const int why = go_on_with_threads(error)) return why;
  return instead_.load(std::memory_order_acquire)->read(pieces, count, bytes, error);
}

int Store::go_on_with_threads(es_error* error) {
  const Lock lock(mutex_);
  if (instead_.load(std::memory_order_relaxed) != nullptr) return ES_OK;
  char why[sizeof why_];
  snprintf(why, sizeof why, "%.255s", error->text);
  Reader* made = nullptr;
  if (const int code = make_thread_reader(file_, spare_threads_, &made, error)) return code;
  memcpy(why_, why, sizeof why_);
  instead_.store(made, std::memory_order_release);
  return ES_OK;
}

int Store::read_all(const int64_t* ids, uint64_t count, uint8_t* out, uint64_t* bytes, es_error* error) {
  if (count == 0) return ES_OK;
  const uint32_t each = file_.pieces_of_a_row();
  const Array<Piece> pieces(count * each);
  if (pieces.data() == nullptr) return fail(error, {ES_MEMORY, "no memory for a call", file_.path()});
  for (uint64_t index = 0; index < count; ++index) {
    file_.locate(static_cast<uint64_t>(ids[index]), out + index * kRowBytes, pieces.data() + index * each);
  }
  return read(pieces.data(), count * each, bytes, error);
}

int Store::read_missing(const int64_t* ids, uint64_t count, uint8_t* out, uint64_t* rows, uint64_t* bytes,
                        es_error* error) {
  *rows = 0;
  const Array<Missing> missing(count);
  if (missing.data() == nullptr) return fail(error, {ES_MEMORY, "no memory for a call", file_.path()});
  uint64_t absent = 0;
  for (uint64_t index = 0; index < count; ++index) {
    if (!cache_.take(ids[index], out + index * kRowBytes)) missing[absent++] = {ids[index], index};
  }
  if (absent == 0) return ES_OK;
  // In the order of the file; it is also the order in which the cache gets them.
  std::sort(missing.data(), missing.data() + absent, [](const Missing& one, const Missing& other) {
    return one.id != other.id ? one.id < other.id : one.index < other.index;
  });
  const uint32_t each = file_.pieces_of_a_row();
  const Array<Piece> pieces(absent * each);
  if (pieces.data() == nullptr) return fail(error, {ES_MEMORY, "no memory for a call", file_.path()});
  for (uint64_t index = 0; index < absent; ++index) {
    if (index > 0 && missing[index].id == missing[index - 1].id) continue;
    uint8_t* into = out + missing[index].index * kRowBytes;
    file_.locate(static_cast<uint64_t>(missing[index].id), into, pieces.data() + *rows * each);
    ++*rows;
  }
  if (const int code = read(pieces.data(), *rows * each, bytes, error)) return code;
  const uint8_t* row = nullptr;
  for (uint64_t index = 0; index < absent; ++index) {
    uint8_t* into = out + missing[index].index * kRowBytes;
    if (index > 0 && missing[index].id == missing[index - 1].id) {
      memcpy(into, row, kRowBytes);
      continue;
    }
    row = into;
    cache_.put(missing[index].id, row);
  }
  return ES_OK;
}

void Store::describe(es_info* info) {
  const Lock lock(mutex_);
  const Reader* instead = instead_.load(std::memory_order_relaxed);
  *info = {};
  info->backend = (instead != nullptr ? instead : reader_)->backend();
  info->direct = file_.direct() ? 1 : 0;
  info->file_bytes = file_.file_bytes();
  info->sets = cache_.sets();
  info->slots = cache_.slots();
  memcpy(info->why, why_, sizeof info->why);
}

void Store::count(es_counters* counters) {
  const Lock lock(mutex_);
  *counters = counters_;
}

void Store::forget() {
  reader_->forget();
  close(file_.descriptor());
}

}  // namespace engram
