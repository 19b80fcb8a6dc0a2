/* Packed Engram rows written, hashed and compared at the speed of the disk.
 *
 * A row of a packed shard is 264 bytes: 256 weight codes, then 8 scale codes, which lie apart in the checkpoint. Each
 * function that begins something returns at once; ep_wait follows it, ep_end ends it. Descriptors are opened again
 * through /proc/self/fd, with O_DIRECT where the file system allows it; else what was read or written is dropped from
 * the page cache on the way. Nothing is thrown and nothing is printed.
 */
#ifndef ENGRAM_PACK_H
#define ENGRAM_PACK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EP_API __attribute__((visibility("default")))
#define EP_ABI_VERSION 1
#define EP_ROW_BYTES 264
#define EP_CHUNK_BYTES (64u << 20) /* of a shard, its header included; the last chunk may be shorter */
#define EP_HASH_BYTES 32

enum ep_code {
  EP_OK = 0,
  EP_ARGUMENT = 1,  /* a number or pointer is wrong */
  EP_IO = 2,        /* sys_errno says why; ENOMEM also for threads */
  EP_SHORT = 3,     /* a file ends early: `expected` bytes at `offset`, `observed` there */
  EP_DIFFERENT = 4, /* `offset` is the row number in the layer, `observed` the column 0..263 */
  EP_CANCELLED = 5  /* ep_end before the end */
};

enum ep_role { EP_NO_FILE = 0, EP_CHECKPOINT = 1, EP_SHARD = 2 };

typedef struct ep_error {
  int32_t code;
  int32_t sys_errno;
  int32_t role; /* ep_role: which file */
  int32_t writing;
  int64_t offset;
  int64_t expected;
  int64_t observed;
} ep_error;

/* Rows [first, end): weights at weight_at + 256 * row of the checkpoint, scales at scale_at + 8 * row, and packed in
 * the shard from header_bytes (at most 1 MiB) on. */
typedef struct ep_rows {
  int32_t checkpoint; /* readable descriptor */
  int32_t shard;      /* descriptor; writable and empty for ep_pack, readable for ep_compare */
  uint64_t weight_at;
  uint64_t scale_at;
  uint64_t first;
  uint64_t end;
  uint64_t header_bytes;
} ep_rows;

typedef struct ep_limits {
  uint64_t memory_bytes; /* for buffers; what is too little for one lane is EP_ARGUMENT */
  uint64_t bytes_s;      /* written by ep_pack, else read; 0 for no bound */
  uint32_t threads;      /* 1..256: that compute at one time; threads that wait for the disk come on top */
} ep_limits;

typedef struct ep_state {
  uint64_t done; /* bytes of the shard */
  uint64_t total;
  int32_t direct_read; /* every file that is read is read with O_DIRECT */
  int32_t direct_write;
} ep_state;

typedef struct ep_job ep_job;

EP_API uint32_t ep_abi_version(void);

/* Writes header and rows; the caller syncs. `header` [header_bytes] and `hashes` [chunks, 32] must stay until ep_end. */
EP_API int ep_pack(const ep_rows *rows, const uint8_t *header, const ep_limits *limits, uint8_t *hashes, ep_job **job,
                   ep_error *error);

/* BLAKE3 of each chunk of the first `size` bytes into `hashes` [chunks, 32], which must stay until ep_end. */
EP_API int ep_hash(int32_t shard, uint64_t size, const ep_limits *limits, uint8_t *hashes, ep_job **job,
                   ep_error *error);

/* Every packed row against the checkpoint; the first difference is EP_DIFFERENT of ep_end. */
EP_API int ep_compare(const ep_rows *rows, const ep_limits *limits, ep_job **job, ep_error *error);

/* 1 when nothing is left to do, 0 after `milliseconds`. */
EP_API int ep_wait(ep_job *job, uint32_t milliseconds, ep_state *state);

/* Cancels what is not done, waits for its threads (at most for one read or write of each), gives all back. Of several
 * failures the one nearest to the beginning of the shard is told. */
EP_API int ep_end(ep_job *job, ep_state *state, ep_error *error);

EP_API void ep_blake3(const uint8_t *data, size_t size, uint8_t *hash);

#ifdef __cplusplus
}
#endif
#endif
