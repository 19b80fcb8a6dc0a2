// Reads through io_uring, by its system calls: all pieces of a call are in flight at once, up to `depth`.
//
// A ring belongs to one call at a time, and to one thread for good where the kernel then does less for each read; calls
// from several threads have rings of their own, up to kRings.
#include <errno.h>
#include <linux/capability.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

#include "reader.h"

namespace engram {
namespace {

constexpr uint32_t kRings = 8;
constexpr uint64_t kDrainNs = 5'000'000'000;  // for reads in flight after the kernel refused to wait for them

// Memory that the kernel maps for a ring.
class Mapping {
 public:
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  bool map(int ring, uint64_t bytes, uint64_t which) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, static_cast<off_t>(which));
    if (data == MAP_FAILED) return false;
    madvise(data, bytes, MADV_DONTFORK);
    data_ = static_cast<uint8_t*>(data);
    bytes_ = bytes;
    return true;
  }
  template <typename T>
  T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// The calling thread's, never 0 and never another's later.
uint64_t this_thread() {
  static std::atomic<uint64_t> last{0};
  static thread_local uint64_t mine = 0;
  if (mine == 0) mine = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return mine;
}

uint32_t acquire(const uint32_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
void release(uint32_t* at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

// Whether registered windows leave enough for the rings of the same user's other stores and processes: the kernel counts all
// of them against one limit, and without a ring there are threads.
bool may_lock(uint64_t bytes) {
  constexpr uint64_t kShares = 64;
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur / kShares)) return true;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct granted[_LINUX_CAPABILITY_U32S_3]{};
  return syscall(__NR_capget, &header, granted) == 0 && (granted[0].effective & (1u << CAP_IPC_LOCK)) != 0;
}

class Ring : public OnHeap {
 public:
  ~Ring() {
    if (descriptor_ >= 0) close(descriptor_);
    free(free_slots_);
    free(slots_);
  }

  int open(const RowFile& file, uint32_t depth, es_error* error) {
    io_uring_params params{};
    // The first: completions are looked after when the thread that waits for them enters the kernel, once for all of a
    // call. The second: without an interrupt. Older kernels have neither.
    constexpr uint32_t kOfOneThread = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN;
    for (const uint32_t flags : {kOfOneThread, uint32_t{IORING_SETUP_COOP_TASKRUN}, uint32_t{0}}) {
      params = {};
      params.flags = IORING_SETUP_CLAMP | flags;
      descriptor_ = setup(depth, &params);
      if (descriptor_ >= 0 && flags == kOfOneThread) thread_ = this_thread();
      if (descriptor_ >= 0 || errno != EINVAL) break;
    }
    if (descriptor_ < 0) return refuse(file, "io_uring_setup failed", error);
    depth_ = params.sq_entries < depth ? params.sq_entries : depth;
    const bool one = (params.features & IORING_FEAT_SINGLE_MMAP) != 0;
    const uint64_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    const uint64_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    if (!sq_.map(descriptor_, one && cq_bytes > sq_bytes ? cq_bytes : sq_bytes, IORING_OFF_SQ_RING) ||
        (!one && !cq_.map(descriptor_, cq_bytes, IORING_OFF_CQ_RING)) ||
        !sqe_.map(descriptor_, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES)) {
      return refuse(file, "the ring cannot be mapped", error);
    }
    const Mapping& cq = one ? sq_ : cq_;
    sq_head_ = sq_.at<uint32_t>(params.sq_off.head);
    sq_tail_ = sq_.at<uint32_t>(params.sq_off.tail);
    sq_mask_ = params.sq_entries - 1;
    cq_head_ = cq.at<uint32_t>(params.cq_off.head);
    cq_tail_ = cq.at<uint32_t>(params.cq_off.tail);
    cq_mask_ = params.cq_entries - 1;
    cqes_ = cq.at<io_uring_cqe>(params.cq_off.cqes);
    sqes_ = sqe_.at<io_uring_sqe>(0);
    uint32_t* array = sq_.at<uint32_t>(params.sq_off.array);
    for (uint32_t index = 0; index < params.sq_entries; ++index) array[index] = index;
    free_slots_ = static_cast<uint32_t*>(malloc(depth_ * sizeof(uint32_t)));
    slots_ = static_cast<uint64_t*>(malloc(depth_ * sizeof(uint64_t)));
    if (free_slots_ == nullptr || slots_ == nullptr || !windows_.allocate(depth_ * kWindow)) {
      return fail(error, {ES_MEMORY, "no memory for a ring", file.path()});
    }
    // Registered windows are not looked up and pinned for each read; where the limit of locked memory forbids it, they are.
    iovec windows{windows_.data(), depth_ * kWindow};
    opcode_ = may_lock(windows.iov_len) &&
                      syscall(__NR_io_uring_register, descriptor_, IORING_REGISTER_BUFFERS, &windows, 1) == 0
                  ? IORING_OP_READ_FIXED
                  : IORING_OP_READ;
    const int32_t known = file.descriptor();  // neither is the file, where that is allowed
    if (syscall(__NR_io_uring_register, descriptor_, IORING_REGISTER_FILES, &known, 1) == 0) {
      file_ = 0;
      file_flags_ = IOSQE_FIXED_FILE;
    } else {
      file_ = known;
    }
    return ES_OK;
  }

  int read(const RowFile& file, const Piece* pieces, uint64_t count, uint64_t* bytes, es_error* error) {
    uint32_t free_count = depth_;
    for (uint32_t index = 0; index < depth_; ++index) free_slots_[index] = index;
    uint64_t next = 0;
    uint32_t in_flight = 0;  // prepared and not finished
    uint64_t give_up_at = 0;
    int code = ES_OK;
    for (;;) {
      while (code == ES_OK && next < count && free_count > 0) {
        const uint32_t slot = free_slots_[--free_count];
        slots_[slot] = next;
        prepare(pieces[next++], slot);
        ++in_flight;
      }
      if (in_flight == 0) return code;
      const uint32_t waiting = *sq_tail_ - acquire(sq_head_);
      // Half of a full ring is waited for, so that it is filled again before it runs dry.
      const uint32_t wanted = next < count && code == ES_OK ? (in_flight + 1) / 2 : in_flight;
      if (give_up_at != 0) enter(0, 0);  // some rings show what is done to nobody who does not ask
      const int why = give_up_at == 0 ? enter(waiting, wanted) : 0;
      if (why == EAGAIN || why == EBUSY) {
        if (acquire(cq_tail_) == *cq_head_) nap_us(50);
      } else if (why != 0 && why != EINTR) {
        if (code == ES_OK) code = fail(error, {ES_READ, "io_uring_enter failed", file.path(), -1, why, -1, -1, "0"});
        broken = true;
        in_flight -= *sq_tail_ - acquire(sq_head_);  // the kernel never saw these
        give_up_at = now_ns() + kDrainNs;
      }
      for (uint32_t head = *cq_head_; head != acquire(cq_tail_);) {
        const io_uring_cqe& done = cqes_[head & cq_mask_];
        const uint32_t slot = static_cast<uint32_t>(done.user_data);
        const int64_t result = done.res;
        release(cq_head_, ++head);
        --in_flight;
        free_slots_[free_count++] = slot;
        if (code != ES_OK) continue;
        const Piece& piece = pieces[slots_[slot]];
        code = result == -EAGAIN || result == -EINTR ? file.read(piece, window(slot), bytes, error)
                                                      : file.take(piece, window(slot), result, bytes, error);
      }
      if (give_up_at == 0 || in_flight == 0) continue;
      if (now_ns() > give_up_at) {
        windows_.leave();
        return code;
      }
      nap_us(200);
    }
  }

  int descriptor() const { return descriptor_; }
  // Whether the calling thread may use it.
  bool serves(uint64_t thread) const { return thread_ == 0 || thread_ == thread; }

  Ring* next_free = nullptr;  // in the list of free rings
  Ring* next_made = nullptr;  // in the list of all rings
  bool broken = false;

 private:
  static int setup(uint32_t depth, io_uring_params* params) {
    return static_cast<int>(syscall(__NR_io_uring_setup, depth, params));
  }

  int enter(uint32_t submit, uint32_t wanted) {
    const long done = syscall(__NR_io_uring_enter, descriptor_, submit, wanted, IORING_ENTER_GETEVENTS, nullptr, 0);
    return done < 0 ? errno : 0;
  }

  static int refuse(const RowFile& file, const char* what, es_error* error) {
    return fail(error, {ES_BACKEND, what, file.path(), -1, errno, -1, -1, "a ring"});
  }

  uint8_t* window(uint32_t slot) const { return windows_.data() + slot * kWindow; }

  void prepare(const Piece& piece, uint32_t slot) {
    const Span span(piece);
    const uint32_t tail = *sq_tail_;
    io_uring_sqe& entry = sqes_[tail & sq_mask_];
    memset(&entry, 0, sizeof entry);
    entry.opcode = opcode_;
    entry.fd = file_;
    entry.flags = file_flags_;
    entry.off = span.start;
    entry.addr = reinterpret_cast<uint64_t>(window(slot));
    entry.len = span.size;
    entry.user_data = slot;
    release(sq_tail_, tail + 1);
  }

  int descriptor_ = -1;
  uint32_t depth_ = 0;
  uint64_t thread_ = 0;  // the only one that may use it; 0 for any
  uint8_t opcode_ = IORING_OP_READ;
  uint8_t file_flags_ = 0;
  int32_t file_ = -1;
  Mapping sq_, cq_, sqe_;
  uint32_t *sq_head_ = nullptr, *sq_tail_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  uint32_t sq_mask_ = 0, cq_mask_ = 0;
  io_uring_cqe* cqes_ = nullptr;
  io_uring_sqe* sqes_ = nullptr;
  uint32_t* free_slots_ = nullptr;  // windows that no read is in
  uint64_t* slots_ = nullptr;       // [depth] index of the piece that a window is for
  Pages windows_;
};

class UringReader final : public Reader {
 public:
  UringReader(const RowFile& file, uint32_t depth) : file_(file), depth_(depth) {}

  ~UringReader() override {
    while (all_ != nullptr) drop(all_);
  }

  // A ring that works: its first read is made here, for a kernel or a file may refuse only that.
  int start(es_error* error) {
    Ring* ring = make(error);
    if (ring == nullptr) return error->code;
    uint8_t first[8];
    const Piece piece{0, sizeof first, first};
    uint64_t bytes = 0;
    if (ring->read(file_, &piece, 1, &bytes, error) != ES_OK) {
      error->code = ES_BACKEND;
      return ES_BACKEND;
    }
    give_back(ring);
    return ES_OK;
  }

  int read(const Piece* pieces, uint64_t count, uint64_t* bytes, es_error* error) override {
    Ring* ring = borrow(error);
    if (ring == nullptr) return error->code;
    const int code = ring->read(file_, pieces, count, bytes, error);
    give_back(ring);
    return code;
  }

  int backend() const override { return ES_IO_URING; }

  void forget() override {
    for (Ring* ring = all_; ring != nullptr; ring = ring->next_made) close(ring->descriptor());
  }

 private:
  Ring* borrow(es_error* error) {
    const uint64_t thread = this_thread();
    const Lock lock(mutex_);
    for (;;) {
      Ring** link = &free_;
      while (*link != nullptr && !(*link)->serves(thread)) link = &(*link)->next_free;
      if (*link != nullptr) {
        Ring* ring = *link;
        *link = ring->next_free;
        return ring;
      }
      if (made_ == kRings) drop_idle();
      if (made_ < kRings) {
        Ring* ring = make(error);
        if (ring != nullptr || made_ == 0) return ring;
        if (drop_idle()) continue;  // what it held may be what the new one lacks
      }
      back_.wait(mutex_);
    }
  }

  // Of the free rings the one that was used longest ago, which is of another thread; it may have ended.
  bool drop_idle() {
    if (free_ == nullptr) return false;
    Ring** link = &free_;
    while ((*link)->next_free != nullptr) link = &(*link)->next_free;
    Ring* ring = *link;
    *link = nullptr;
    drop(ring);
    return true;
  }

  void give_back(Ring* ring) {
    const Lock lock(mutex_);
    if (ring->broken) {
      drop(ring);
    } else {
      ring->next_free = free_;
      free_ = ring;
    }
    back_.signal();
  }

  Ring* make(es_error* error) {
    Ring* ring = new Ring;
    if (ring == nullptr) {
      fail(error, {ES_MEMORY, "no memory for a ring", file_.path()});
      return nullptr;
    }
    if (ring->open(file_, depth_, error) != ES_OK) {
      delete ring;
      return nullptr;
    }
    ring->next_made = all_;
    all_ = ring;
    ++made_;
    return ring;
  }

  void drop(Ring* ring) {
    Ring** link = &all_;
    while (*link != ring) link = &(*link)->next_made;
    *link = ring->next_made;
    --made_;
    delete ring;
  }

  const RowFile& file_;
  const uint32_t depth_;
  Mutex mutex_;
  Condition back_;
  Ring* free_ = nullptr;
  Ring* all_ = nullptr;
  uint32_t made_ = 0;
};

}  // namespace

int make_uring_reader(const RowFile& file, uint32_t depth, Reader** reader, es_error* error) {
  UringReader* made = new UringReader(file, depth);
  if (made == nullptr) return fail(error, {ES_MEMORY, "no memory for the readers", file.path()});
  if (const int code = made->start(error)) {
    delete made;
    return code;
  }
  *reader = made;
  return ES_OK;
}

}  // namespace engram
