// bf16 activations times an e4m3 weight with one power-of-two scale for each 32 x 32 block, for few tokens.
//
//   out[t][n] = sum over k of x[t][group of n][k] * (code[n][k] * 2^(exponent[n / 32][k / 32] - 127))
//
// The weight is streamed once, from global memory straight into registers, in the order in which the tensor cores take
// it (README.md has the layout); the activations stay on the multiprocessor. Bits of a code become a bf16, value * 2^-120, and
// one multiplication by 2^(exponent - 127 + 120) makes it the wide weight's bf16, bit for bit. K is split over the warps
// of a block and over the blocks of a cluster; partial sums meet in shared memory and are added in a fixed order. One
// launch, no atomics, no workspace: the result depends on the inputs alone.

#include <cooperative_groups.h>
#include <cstdint>
#include <cuda_bf16.h>

namespace twin {

constexpr int kTileRows = 16;  // weight rows of a tensor-core tile
constexpr int kTileK = 32;     // columns of a unit: one scale, 16 bytes a lane
constexpr int kTokens = 8;     // tokens of a tensor-core tile
constexpr int kUnitBytes = kTileRows * kTileK;
constexpr int kRows = 32;  // rows worked on at a time: those that share scales
constexpr int kTilesOfRows = kRows / kTileRows;
constexpr uint32_t kScaleShift = 120;  // of a code's bits read as bf16

struct Arguments {
  const uint8_t* codes;      // [rows / 16][K / 32][512]
  const uint8_t* exponents;  // [rows / 32][K / 32], biased by 127, at most 134
  const __nv_bfloat16* x;    // K values from x + token * token_stride + group * group_stride
  __nv_bfloat16* out;        // [tokens][rows]
  int64_t token_stride;      // of x, in elements, a multiple of 8, as the next
  int64_t group_stride;
  int32_t tokens;
  int32_t rows;
  int32_t group_rows;  // rows of a group; all rows of a cluster are of one group
};

__device__ __forceinline__ uint4 stream(const uint8_t* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

// Not the read-only path: the kernel before this one may have written x shortly before.
__device__ __forceinline__ uint4 load(const __nv_bfloat16* address) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

// The lane's own 16 bytes, without passing through registers; zeros when `none`.
__device__ __forceinline__ void stage(uint4* place, const __nv_bfloat16* address, bool none) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(place))),
               "l"(address), "r"(none ? 0 : 16)
               : "memory");
}

// A word holds four codes: two where bf16 has sign, low 4 bits of exponent and high 3 of mantissa, two in the rest.
__device__ __forceinline__ uint32_t first_pair(uint32_t word) { return word & 0x87f087f0u; }

__device__ __forceinline__ uint32_t second_pair(uint32_t word) {
  return ((word << 4) & 0x80f080f0u) | ((word >> 4) & 0x07000700u);
}

__device__ __forceinline__ uint32_t scaled(uint32_t pair, uint32_t scale) {
  uint32_t result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(scale));
  return result;
}

__device__ __forceinline__ uint32_t scale_pair(uint32_t exponent) {
  return ((exponent + kScaleShift) << 7) * 0x00010001u;
}

__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void store(const Arguments& given, int token, int64_t row, float value) {
  given.out[static_cast<int64_t>(token) * given.rows + row] = __float2bfloat16_rn(value);
}

// N tiles of 8 tokens; W warps a block; C blocks a cluster; U units of K a warp; D units in flight; kByK: both tiles of
// 16 rows take a unit's columns before the next columns come; kStaged: activations stay in shared memory, where a block
// may have enough of it, else in registers. A lane stages and reads its own bytes: no warp waits for another. kOnce: a
// cluster is one block and has 32 rows, so that sums may lie where activations lay.
// Grid: (C, chunks of 8 N tokens, clusters that share the rows). Dynamic shared memory: see shared_bytes in twin_plan.py.
template <int N, int W, int C, int U, int D, bool kByK, bool kStaged, bool kOnce>
__device__ __forceinline__ void product(const Arguments& given) {
  constexpr int kUnits = kTilesOfRows * U;
  constexpr int kAllUnits = U * W * C;
  constexpr int kStride = kRows + 4;  // of a token's sums: no two lanes write to one bank
  constexpr int kSlots = (N * kTokens + C - 1) / C;
  constexpr int64_t kBlockBytes = static_cast<int64_t>(kTilesOfRows) * kAllUnits * kUnitBytes;
  static_assert(kUnits % D == 0 && U <= 32 && (!kOnce || (C == 1 && kStaged)));
  constexpr int kSums = kOnce ? 0 : 2 * (W * N * kTokens * kStride + C * kSlots * kRows);
  const auto place = [](int unit) {
    return (kByK ? unit % kTilesOfRows * kAllUnits + unit / kTilesOfRows : unit / U * kAllUnits + unit % U) *
           kUnitBytes;
  };

  extern __shared__ float shared[];
  const auto warp_sums = reinterpret_cast<float(*)[W][N * kTokens * kStride]>(shared);
  const auto block_sums = reinterpret_cast<float(*)[C][kSlots * kRows]>(shared + 2 * W * N * kTokens * kStride);

  uint4* const staged =
      reinterpret_cast<uint4*>(shared + kSums + threadIdx.x / 32 * (U * N * 128) + threadIdx.x % 32 * 4);

  if constexpr (C > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rank = C > 1 ? static_cast<int>(blockIdx.x) : 0;
  const int first_token = blockIdx.y * (N * kTokens);
  const int tokens = min(given.tokens - first_token, N * kTokens);
  const int64_t blocks = given.rows / kRows;
  const int first = static_cast<int>(blocks * blockIdx.z / gridDim.z);
  const int end = static_cast<int>(blocks * (blockIdx.z + 1) / gridDim.z);
  const int first_unit = (rank * W + warp) * U;

  const uint8_t* codes = given.codes + first * kBlockBytes + first_unit * kUnitBytes + lane * 16;
  uint4 ring[D];
#pragma unroll
  for (int unit = 0; unit < D; ++unit) ring[unit] = stream(codes + place(unit));
  const uint8_t* exponents =
      given.exponents + static_cast<int64_t>(first) * kAllUnits + first_unit + min(lane, U - 1);
  uint32_t next_exponent = __ldg(exponents);

  // The weight does not depend on what ran before, being whole before its first use; activations and `out` do.
  asm volatile("griddepcontrol.wait;" ::: "memory");

  uint4 held[kStaged ? 1 : N][kStaged ? 1 : U];
  const int group = first * kRows / given.group_rows;
#pragma unroll
  for (int unit = 0; unit < U; ++unit) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int token = n * kTokens + lane / 4;
      const __nv_bfloat16* x = given.x + (first_token + token) * given.token_stride + group * given.group_stride +
                               first_unit * kTileK + lane % 4 * 8;
      if constexpr (kStaged) {
        stage(staged + (unit * N + n) * 32, token < tokens ? x + unit * kTileK : given.x, token >= tokens);
      } else {
        held[n][unit] = make_uint4(0, 0, 0, 0);
        if (token < tokens) held[n][unit] = load(x + unit * kTileK);
      }
    }
  }
  if constexpr (kStaged) asm volatile("cp.async.wait_all;" ::: "memory");

  const auto finish = [&](int block, int buffer) {  // adds up and writes this rank's tokens
    for (int index = threadIdx.x; index < kSlots * kRows; index += W * 32) {
      const int token = index / kRows * C + rank;
      if (token >= tokens) break;
      float sum = block_sums[buffer][0][index];
#pragma unroll
      for (int other = 1; other < C; ++other) sum += block_sums[buffer][other][index];
      store(given, first_token + token, static_cast<int64_t>(block) * kRows + index % kRows, sum);
    }
  };

  for (int block = first; block < end; ++block) {
    const bool more = block + 1 < end;
    const int buffer = (block - first) & 1;
    const uint32_t scale_of_lane = scale_pair(next_exponent);
    exponents += kAllUnits;
    if (more) next_exponent = __ldg(exponents);
    float sums[kTilesOfRows][N][4];
#pragma unroll
    for (int m = 0; m < kTilesOfRows; ++m)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[m][n][c] = 0.0f;

    uint32_t scale = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int m = kByK ? unit % kTilesOfRows : unit / U, k = kByK ? unit / kTilesOfRows : unit % U;
      const uint4 word = ring[unit % D];
      const int next = unit + D;
      if (next < kUnits) {
        ring[unit % D] = stream(codes + place(next));
      } else if (more) {
        ring[unit % D] = stream(codes + kBlockBytes + place(next - kUnits));
      }
      if (!kByK || m == 0) scale = __shfl_sync(0xffffffffu, scale_of_lane, k);
      const uint32_t low[4] = {scaled(first_pair(word.x), scale), scaled(first_pair(word.z), scale),
                               scaled(second_pair(word.x), scale), scaled(second_pair(word.z), scale)};
      const uint32_t high[4] = {scaled(first_pair(word.y), scale), scaled(first_pair(word.w), scale),
                                scaled(second_pair(word.y), scale), scaled(second_pair(word.w), scale)};
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const uint4 input = kStaged ? staged[(k * N + n) * 32] : held[kStaged ? 0 : n][kStaged ? 0 : k];
        multiply(sums[m][n], low, input.x, input.y);
        multiply(sums[m][n], high, input.z, input.w);
      }
    }
    codes += kBlockBytes;

    if constexpr (kOnce) __syncthreads();  // no activation is read any more
    float* mine = warp_sums[buffer][warp];
#pragma unroll
    for (int m = 0; m < kTilesOfRows; ++m)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int token = n * kTokens + lane % 4 * 2 + c % 2, row = m * kTileRows + lane / 4 + c / 2 * 8;
          mine[token * kStride + row] = sums[m][n][c];
        }
    __syncthreads();
    if constexpr (C > 1) {
      // Of the first block: all blocks of the cluster run. Later: all sums of the block before are here.
      asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
      if (block > first) finish(block - 1, buffer ^ 1);
    }
    for (int index = threadIdx.x; index < tokens * kRows; index += W * 32) {
      const int token = index / kRows, row = index % kRows;
      float sum = warp_sums[buffer][0][token * kStride + row];
#pragma unroll
      for (int other = 1; other < W; ++other) sum += warp_sums[buffer][other][token * kStride + row];
      if constexpr (C > 1) {
        float* place_of_sum = &block_sums[buffer][rank][token / C * kRows + row];
        *cooperative_groups::this_cluster().map_shared_rank(place_of_sum, token % C) = sum;
      } else {
        store(given, first_token + token, static_cast<int64_t>(block) * kRows + row, sum);
      }
    }
    if constexpr (C > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  }
  if constexpr (C > 1) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    finish(end - 1, (end - 1 - first) & 1);
  }
}

}  // namespace twin

using twin::Arguments;
using twin::kTileK;
using twin::kTileRows;
using twin::kTilesOfRows;
using twin::kUnitBytes;

#define PRODUCT(NAME, N, W, C, U, D, BY_K, STAGED, ONCE, BLOCKS)                          \
  extern "C" __global__ void __launch_bounds__(W * 32, BLOCKS) __cluster_dims__(C, 1, 1)  \
      NAME(const __grid_constant__ Arguments given) {                                     \
    twin::product<N, W, C, U, D, BY_K, STAGED, ONCE>(given);                              \
  }

// K = 32 U W C. The plan of a launch, twin_plan.py, has the same numbers.
PRODUCT(twin_k4096_n1, 1, 16, 1, 8, 8, true, false, false, 1)
PRODUCT(twin_k4096_n2_staged, 2, 16, 1, 8, 8, true, true, false, 1)
PRODUCT(twin_k4096_n2, 2, 16, 2, 4, 8, true, false, false, 1)
PRODUCT(twin_k4096_n3_once, 3, 16, 1, 8, 8, true, true, true, 1)
PRODUCT(twin_k4096_n3, 3, 8, 2, 8, 8, true, false, false, 1)
PRODUCT(twin_k5120_n1, 1, 8, 2, 10, 10, false, false, false, 2)
PRODUCT(twin_k5120_n2_staged, 2, 16, 2, 5, 10, false, true, false, 1)
PRODUCT(twin_k5120_n2, 2, 8, 2, 10, 10, true, false, false, 1)
PRODUCT(twin_k5120_n3_staged, 3, 8, 2, 10, 20, false, true, false, 1)
PRODUCT(twin_k5120_n3, 3, 8, 2, 10, 10, false, false, false, 1)

// The wide weight again, bit for bit: out[rows][columns] bf16. A warp for each unit of 16 rows and 32 columns.
extern "C" __global__ void __launch_bounds__(256) twin_widen(const uint8_t* codes, const uint8_t* exponents,
                                                             __nv_bfloat16* out, int32_t rows, int32_t columns) {
  const int units = columns / kTileK, lane = threadIdx.x % 32;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  // First of all: the twin may be new, and `out` may lie where the kernel before still works.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (unit >= static_cast<int64_t>(rows / kTileRows) * units) return;
  const int tile = static_cast<int>(unit / units), column = static_cast<int>(unit % units);
  const uint4 word = twin::stream(codes + unit * kUnitBytes + lane * 16);
  const uint32_t scale = twin::scale_pair(__ldg(exponents + static_cast<int64_t>(tile / kTilesOfRows) * units + column));
  const auto widen = [scale](uint32_t low, uint32_t high) {
    return make_uint4(twin::scaled(twin::first_pair(low), scale), twin::scaled(twin::second_pair(low), scale),
                      twin::scaled(twin::first_pair(high), scale), twin::scaled(twin::second_pair(high), scale));
  };
  __nv_bfloat16* place = out + (static_cast<int64_t>(tile) * kTileRows + lane / 4) * columns + column * kTileK +
                         lane % 4 * 8;
  *reinterpret_cast<uint4*>(place) = widen(word.x, word.y);
  *reinterpret_cast<uint4*>(place + static_cast<int64_t>(8) * columns) = widen(word.z, word.w);
}
