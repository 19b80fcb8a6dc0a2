/* Rows of one Engram layer that one rank owns, read from a packed shard or from the checkpoint.
 *
 * A row is 264 bytes: 256 weight codes, then 8 scale codes. A store is named by a handle, never 0; a handle that was
 * closed is an error (ES_CLOSED), not undefined behaviour. Every function may be called from any thread. A process
 * that inherited a store by fork gets ES_FORKED from all but es_close, which gives back the child's descriptors.
 * Nothing is thrown and nothing is printed; whatever fails fills an es_error.
 */
#ifndef ENGRAM_STORE_H
#define ENGRAM_STORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ES_API __attribute__((visibility("default")))
#define ES_ABI_VERSION 1
#define ES_ROW_BYTES 264
#define ES_LATENCY_BUCKETS 32
#define ES_TEXT_BYTES 5120

enum es_code {
  ES_OK = 0,
  ES_ARGUMENT = 1,  /* an option or pointer is wrong */
  ES_OPEN = 2,      /* the file cannot be opened or looked at; sys_errno says why */
  ES_KIND = 3,      /* it is no regular file */
  ES_NO_DIRECT = 4, /* the file system refuses O_DIRECT: fall back to what is declared, or refuse */
  ES_HEADER = 5,    /* the header of a packed shard is not the one of this layer and these rows */
  ES_SIZE = 6,      /* the file is shorter or longer than what its rows take */
  ES_HOLES = 7,     /* a packed shard has ranges that were never written */
  ES_ID = 8,        /* a row id is not owned; nothing was read */
  ES_READ = 9,      /* a read failed; sys_errno says why */
  ES_SHORT = 10,    /* a read ended early: the file was truncated while open */
  ES_BACKEND = 11,  /* the backend that was asked for cannot run here */
  ES_MEMORY = 12,   /* no memory, no thread or no store left */
  ES_FORKED = 13,   /* the store belongs to the process that opened it */
  ES_CLOSED = 14    /* no store has this handle, or it is being closed */
};

/* `offset`, `expected` and `observed` are -1 where they are no number; `text` has them in words, with the path. */
typedef struct es_error {
  int32_t code;
  int32_t sys_errno;
  int64_t offset;
  int64_t expected;
  int64_t observed;
  char text[ES_TEXT_BYTES];
} es_error;

enum es_backend { ES_AUTO = 0, ES_IO_URING = 1, ES_THREADS = 2 };

typedef struct es_options {
  int32_t backend;      /* es_backend; ES_AUTO takes io_uring where it works, else threads */
  uint32_t depth;       /* 1..4096: reads that one call has in flight with io_uring */
  uint32_t threads;     /* 1..1024: readers of a call without io_uring, the caller among them; all stores share them */
  uint32_t ways;        /* 1..16: rows of a cache set */
  uint64_t cache_bytes; /* budget of the cache: 272 bytes a row and 1 byte a set; 0 for none */
  uint64_t layer;
  uint64_t first;       /* first owned row */
  uint64_t end;         /* first row that is not owned any more */
  uint64_t total;       /* rows of the whole table */
} es_options;

typedef struct es_info {
  int32_t backend; /* ES_IO_URING or ES_THREADS */
  int32_t direct;  /* 0 when a checkpoint is read through the page cache */
  uint64_t file_bytes;
  uint64_t sets;
  uint64_t slots;
  char why[256]; /* why it is not io_uring; empty when it is, or when threads were asked for */
} es_info;

/* Of calls that ended well, consistent with each other. hits + rows read = lookups. */
typedef struct es_counters {
  uint64_t calls;
  uint64_t lookups;
  uint64_t hits;
  uint64_t reads;
  uint64_t bytes; /* that the reads brought */
  /* Calls that read, by duration: [0] below 1 us, [k] from 2^(k-1) to below 2^k us, the last all above. */
  uint64_t latency[ES_LATENCY_BUCKETS];
} es_counters;

ES_API uint32_t es_abi_version(void);

/* A packed shard, always with O_DIRECT. With allow_longer bytes after the last row are passed over. */
ES_API int es_open_packed(const char *path, const es_options *options, int allow_longer, uint64_t *handle,
                          es_error *error);

/* The two-read path: weights [total, 256] at weight_at of the file, scales [total, 8] at scale_at.
 * With allow_buffered a file system without O_DIRECT is read through the page cache (es_info.direct = 0). */
ES_API int es_open_checkpoint(const char *path, uint64_t weight_at, uint64_t scale_at, const es_options *options,
                              int allow_buffered, uint64_t *handle, es_error *error);

/* out [count, 264] gets the rows of the global ids [count], each first <= id < end, in any order and number.
 * Without a cache every id is a read (of a checkpoint: two); with one, an id that occurs twice in a call is read once
 * and is a hit from then on. After an error the content of out is undefined. */
ES_API int es_fetch(uint64_t handle, const int64_t *ids, size_t count, uint8_t *out, es_error *error);

ES_API int es_describe(uint64_t handle, es_info *info, es_error *error);
ES_API int es_count(uint64_t handle, es_counters *counters, es_error *error);

/* A lookup for a CUDA host function: everything lies where the caller put it, and nothing of CUDA is called.
 *
 * ids[t * stride + c] for t < tokens, c < columns are global row ids of any rank. Position t * columns + c of weights
 * and scales gets the row's bytes where first <= id < end, else zeros. A lookup that fails is made once more; when that
 * fails too, all weights become the code of NaN (0xff) and scales that of 1 (127), so that nothing can take them for
 * rows, and `failed` and `error` stay as they are until the caller clears `failed`.
 */
typedef struct es_job {
  uint64_t handle;
  const int64_t *ids;
  uint64_t tokens;
  uint64_t columns;
  uint64_t stride; /* of ids, between tokens */
  int64_t first;
  int64_t end;
  uint8_t *weights; /* [tokens * columns, 256] */
  uint8_t *scales;  /* [tokens * columns, 8] */
  int64_t *owned;   /* scratch [tokens * columns] */
  uint64_t *places; /* scratch [tokens * columns] */
  uint8_t *rows;    /* scratch [tokens * columns, 264] */
  uint64_t calls;   /* since the start; these four are written atomically */
  uint64_t retries;
  uint64_t busy_ns;
  int32_t failed;
  int32_t reserved;
  es_error error;
} es_job;

/* The type of a CUDA host function; `job` is an es_job. */
ES_API void es_serve(void *job);

/* Waits for calls in progress, then gives back descriptors, threads, rings and memory. */
ES_API int es_close(uint64_t handle, es_error *error);

#ifdef __cplusplus
}
#endif
#endif
