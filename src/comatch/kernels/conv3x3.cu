// A 3x3 convolution of few channels, fused with the batch norm and activation around it in a
// pre-activation block.
//
// A convolution of 32 channels is limited by memory, and the batch norm around it reads and writes
// the same data several times more. Here a tile of the input with a border of one pixel is read
// once into shared memory; norm and activation are applied while it is read; all nine taps are
// matrix products from shared memory; and the sums that the next norm needs, of the output and of
// its squares per channel, are computed while it is written.
//
// Images are [N, SIZE, SIZE, channels] in bf16, weights [out][tap][in] in float32. The caller
// defines K_CH (channels of the input), N_CH (of the output; both multiples of 16), SIZE, ROWS (of
// an image in a tile), SLOPE (of the activation), TEAMS, WARPS (of a team) and BACKWARD.

typedef unsigned int u32;

constexpr int PIXELS = ROWS * SIZE;  // of one tile
constexpr int WIDE = SIZE + 2;       // a row with its border
constexpr int TILES = SIZE / ROWS;   // of one image

// Shared memory holds 8 channels (16 bytes) of all pixels, then the next 8: eight neighbouring
// pixels are 128 bytes in a row, wherever they begin, so any tap reads without bank conflicts. The
// padding keeps writes of neighbouring planes apart as well.
__device__ constexpr int plane(int pixels) { return pixels + (10 - pixels % 8) % 8; }
constexpr int X_PLANE = plane((ROWS + 2) * WIDE);
constexpr int DY_PLANE = plane(PIXELS);

__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ u32 pack(float a, float b) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  return pair;
}

__device__ __forceinline__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void load4(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load4_transposed(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// c[16 x 8] += a[16 x 16] b[16 x 8], spread over a warp.
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Copies 16 bytes asynchronously.
__device__ __forceinline__ void copy16(uint4* to, const uint4* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Waits for the threads of one team; a block may hold several.
__device__ __forceinline__ void meet(int team, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(team + 1), "r"(threads) : "memory");
}

// Delays teams differently. Otherwise all would read, and then multiply, at the same time.
__device__ __forceinline__ void stagger(int team) {
  if (STAGGER && team) __nanosleep(team * STAGGER);
}

__device__ __forceinline__ u32 norm_act(u32 pair, const float* scale, const float* shift) {
  float a = fmaf(low(pair), scale[0], shift[0]), b = fmaf(high(pair), scale[1], shift[1]);
  return pack(fmaxf(a, SLOPE * a), fmaxf(b, SLOPE * b));
}

// Visits the 16-byte pieces of a tile with its border that belong to a thread: where each goes in
// the tile, where it comes from in the image, and in which row it lies. BATCH pieces are read
// (`first`) before any is written (`then`), so that many reads are in flight.
template <int CH, int THREADS, int BATCH, typename First, typename Then>
__device__ __forceinline__ void visit(int thread, int row0, First first, Then then) {
  constexpr int CHUNKS = CH / 8, PIECES = (ROWS + 2) * SIZE * CHUNKS;
  static_assert(THREADS % CHUNKS == 0, "a thread keeps its channels");
#pragma unroll 1
  for (int begin = thread / CHUNKS; begin < (ROWS + 2) * SIZE; begin += BATCH * THREADS / CHUNKS)
#pragma unroll
    for (int pass = 0; pass < 2; pass++)
#pragma unroll
      for (int i = 0; i < BATCH; i++) {
        const int pixel = begin + i * (THREADS / CHUNKS), row = row0 + pixel / SIZE - 1;
        if (PIECES % (BATCH * THREADS) && pixel >= (ROWS + 2) * SIZE) continue;
        if (pass == 0) first(i, (row * SIZE + pixel % SIZE) * CHUNKS + thread % CHUNKS, row);
        else then(i, thread % CHUNKS * X_PLANE + pixel / SIZE * WIDE + pixel % SIZE + 1, row);
      }
}

// Reads a tile; ACT: as leaky(scale x + shift). Zeros outside the image.
template <int CH, bool ACT, int THREADS, int BATCH>
__device__ __forceinline__ void read(uint4* tile, const uint4* __restrict__ in,
                                     const float* __restrict__ coef, int thread, int t) {
  const uint4* image = in + t / TILES * (SIZE * SIZE * CH / 8);
  float scale[8], shift[8];
  if (ACT) {
    const float4* mine = (const float4*)(coef + thread % (CH / 8) * 8);
    *(float4*)scale = __ldg(mine), *(float4*)(scale + 4) = __ldg(mine + 1);
    *(float4*)shift = __ldg(mine + CH / 4), *(float4*)(shift + 4) = __ldg(mine + CH / 4 + 1);
  }
  uint4 v[BATCH];
  visit<CH, THREADS, BATCH>(thread, t % TILES * ROWS,
    [&](int i, int at, int row) {
      v[i] = make_uint4(0, 0, 0, 0);
      if (row >= 0 && row < SIZE) v[i] = __ldg(image + at);
    },
    [&](int i, int place, int row) {
      if (ACT && row >= 0 && row < SIZE) {
        v[i].x = norm_act(v[i].x, scale, shift);
        v[i].y = norm_act(v[i].y, scale + 2, shift + 2);
        v[i].z = norm_act(v[i].z, scale + 4, shift + 4);
        v[i].w = norm_act(v[i].w, scale + 6, shift + 6);
      }
      tile[place] = v[i];
    });
}

// The borders left and right of an image are zero; no tile writes there.
__device__ __forceinline__ void clear(uint4* tile, int size, int thread, int threads) {
  for (int i = thread; i < size; i += threads) tile[i] = make_uint4(0, 0, 0, 0);
}

// ---------------------------------------------------------------------------------------------
// BACKWARD = 0:   y = conv(leaky(scale x + shift)) (+ beside), and the sums of y and y^2
// BACKWARD = 1:   dn = leaky'(n) conv^T(dy), n = scale beside + shift, and the sums of dn and
//                 dn beside, which the backward of the norm needs
//
// The teams of a block share the weights and process different tiles, so that one reads while
// another multiplies.

constexpr int TEAM = 32 * WARPS, X_TILE = K_CH / 8 * X_PLANE;
constexpr int EACH = (ROWS + 2) * SIZE * (K_CH / 8) / TEAM;  // pieces of a tile for a thread
constexpr int EIGHTS = N_CH / 8;                       // of output channels
constexpr int ACROSS = SIZE / 16;                      // sixteens of pixels in a row
constexpr int STRIP = PIXELS / (16 * WARPS);           // rows of sixteen pixels, for each warp
constexpr int MINE = N_CH / 4;                         // channels of the result that a thread holds

struct alignas(MINE * 2 < 16 ? MINE * 2 : 16) Channels { u32 pair[MINE / 2]; };

// Prefetches the data for the end of a tile while the tile is multiplied.
__device__ __forceinline__ void prefetch(const Channels* beside, int first, int quarter) {
  if (beside == nullptr) return;
#pragma unroll
  for (int m = 0; m < STRIP; m++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      asm volatile("prefetch.global.L2 [%0];"
                   :: "l"(beside + (first + m * SIZE + half * 8) * 4 + quarter));
}

extern "C" __global__ void __launch_bounds__(TEAM * TEAMS, 1)
conv(const uint4* __restrict__ in, const float* __restrict__ coef, const float* __restrict__ weight,
     const Channels* __restrict__ beside, Channels* __restrict__ out, float* __restrict__ partial,
     int tiles) {
  extern __shared__ uint4 shared[];
  const int team = threadIdx.x / TEAM, thread = threadIdx.x % TEAM;
  const int warp = thread / 32, lane = thread % 32, group = lane / 4, quarter = lane % 4;
  uint4* taps = shared;                                                  // [9][K_CH / 8][N_CH]
  float* norm = (float*)(taps + 9 * K_CH / 8 * N_CH);                    // [2][N_CH]
  uint4* tile = (uint4*)(norm + 2 * N_CH) + team * X_TILE;               // [K_CH / 8][X_PLANE]

  clear(tile, X_TILE, thread, TEAM);
  if (BACKWARD)
    for (int i = threadIdx.x; i < 2 * N_CH; i += TEAM * TEAMS) norm[i] = coef[i];
  for (int i = threadIdx.x; i < 9 * K_CH * N_CH; i += TEAM * TEAMS) {
    int k, n, tap;
    if (BACKWARD) { n = i % N_CH; tap = 8 - i / N_CH % 9; k = i / N_CH / 9; }
    else          { k = i % K_CH; tap = i / K_CH % 9;     n = i / K_CH / 9; }
    // Distributed so that each thread holds a quarter of consecutive channels.
    const int place = n % MINE / 2 * 8 + n / MINE * 2 + n % 2;
    ((unsigned short*)taps)[((tap * (K_CH / 8) + k / 8) * N_CH + place) * 8 + k % 8] =
        (unsigned short)pack(weight[i], 0.f);
  }
  __syncthreads();

  // A warp computes a strip of pixels, 16 wide and STRIP rows high.
  const int strip = warp / ACROSS * STRIP * SIZE + warp % ACROSS * 16;
  const int part = lane / 8, r = lane % 8;
  const u32 at_pixel = address(tile + part / 2 * X_PLANE + warp / ACROSS * STRIP * WIDE +
                               warp % ACROSS * 16 + part % 2 * 8 + r);
  const u32 at_tap = address(taps + part % 2 * N_CH + part / 2 * 8 + r);
  float sum[MINE], product[MINE];
#pragma unroll
  for (int c = 0; c < MINE; c++) sum[c] = product[c] = 0;

  stagger(team);
  for (int t = blockIdx.x * TEAMS + team; t < tiles; t += gridDim.x * TEAMS) {
    meet(team, TEAM);  // the previous tile is no longer needed
    read<K_CH, !BACKWARD, TEAM, EACH>(tile, in, coef, thread, t);
    meet(team, TEAM);
    prefetch(beside, t * PIXELS + strip + group, quarter);

    float y[STRIP][EIGHTS][4] = {};
#pragma unroll
    for (int across = 0; across < 3; across++)
#pragma unroll
      for (int k = 0; k < K_CH / 16; k++) {
        u32 a[2][4], b[3][EIGHTS / 2][4];
        load4(a[0], at_pixel + (k * 2 * X_PLANE + across) * 16);
#pragma unroll
        for (int down = 0; down < 3; down++)
#pragma unroll
          for (int f = 0; f < EIGHTS / 2; f++)
            load4(b[down][f],
                  at_tap + (((down * 3 + across) * (K_CH / 8) + k * 2) * N_CH + f * 16) * 16);
        // A row of the input is used for three rows of the output; the next is loaded meanwhile.
#pragma unroll
        for (int row = 0; row < STRIP + 2; row++) {
          if (row + 1 < STRIP + 2)
            load4(a[(row + 1) % 2], at_pixel + (k * 2 * X_PLANE + (row + 1) * WIDE + across) * 16);
#pragma unroll
          for (int down = 0; down < 3; down++)
            if (row >= down && row - down < STRIP)
#pragma unroll
              for (int f = 0; f < EIGHTS; f++)
                multiply(y[row - down][f], a[row % 2], b[down][f / 2][f % 2 * 2],
                         b[down][f / 2][f % 2 * 2 + 1]);
        }
      }

    const int first = t * PIXELS + strip + group;
#pragma unroll
    for (int m = 0; m < STRIP; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int place = (first + m * SIZE + half * 8) * 4 + quarter;
        Channels also, result;
        if (beside != nullptr) also = beside[place];
#pragma unroll
        for (int f = 0; f < EIGHTS; f++) {
          float v0 = y[m][f][half * 2], v1 = y[m][f][half * 2 + 1];
          const float x0 = beside != nullptr ? low(also.pair[f]) : 0;
          const float x1 = beside != nullptr ? high(also.pair[f]) : 0;
          if (BACKWARD) {
            const float* n = norm + quarter * MINE + 2 * f;
            v0 *= fmaf(x0, n[0], n[N_CH]) > 0 ? 1.f : SLOPE;
            v1 *= fmaf(x1, n[1], n[N_CH + 1]) > 0 ? 1.f : SLOPE;
          } else {
            v0 += x0;
            v1 += x1;
          }
          result.pair[f] = pack(v0, v1);
          sum[2 * f] += v0;
          sum[2 * f + 1] += v1;
          product[2 * f] += v0 * (BACKWARD ? x0 : v0);
          product[2 * f + 1] += v1 * (BACKWARD ? x1 : v1);
        }
        out[place] = result;
      }
  }

  // The block's sums: over the eight lanes of a quarter, then over the warps.
  __syncthreads();
  float* table = (float*)shared;  // [TEAMS * WARPS][2][N_CH]
  float* row = table + threadIdx.x / 32 * 2 * N_CH;
#pragma unroll
  for (int c = 0; c < MINE; c++) {
#pragma unroll
    for (int away = 4; away < 32; away *= 2) {
      sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], away);
      product[c] += __shfl_xor_sync(0xffffffffu, product[c], away);
    }
    if (group == 0) {
      row[quarter * MINE + c] = sum[c];
      row[N_CH + quarter * MINE + c] = product[c];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * N_CH; i += TEAM * TEAMS) {
    float total = 0;
    for (int w = 0; w < TEAMS * WARPS; w++) total += table[w * 2 * N_CH + i];
    partial[blockIdx.x * 2 * N_CH + i] = total;
  }
}

// ---------------------------------------------------------------------------------------------
// dW[out][tap][in] = sum over pixels of dy[pixel][out] leaky(scale x + shift)[pixel + tap][in]
//
// A team is three warps; each accumulates the three taps of a row in registers over all tiles.

#if !BACKWARD
constexpr int W_TEAM = 96, W_THREADS = W_TEAM * TEAMS, DY_TILE = EIGHTS * DY_PLANE;

extern "C" __global__ void __launch_bounds__(W_THREADS, 1)
weight_gradient(const uint4* __restrict__ in, const float* __restrict__ coef,
                const uint4* __restrict__ dy, float* __restrict__ partial, int tiles) {
  extern __shared__ uint4 shared[];
  const int team = threadIdx.x / W_TEAM, thread = threadIdx.x % W_TEAM;
  const int lane = thread % 32, tap_row = thread / 32, part = lane / 8, r = lane % 8;
  uint4* tile = shared + team * (X_TILE + DY_TILE);   // [K_CH / 8][X_PLANE]
  uint4* gradient = tile + X_TILE;                    // [N_CH / 8][DY_PLANE]
  clear(tile, X_TILE, thread, W_TEAM);

  // Read transposed: the product sums over pixels; its rows and columns are channels.
  const u32 at_x = address(tile + part % 2 * X_PLANE + tap_row * WIDE + part / 2 * 8 + r);
  const u32 at_dy = address(gradient + part / 2 * DY_PLANE + part % 2 * 8 + r);
  float w[3][K_CH / 16][EIGHTS][4] = {};

  stagger(team);
  for (int t = blockIdx.x * TEAMS + team; t < tiles; t += gridDim.x * TEAMS) {
    meet(team, W_TEAM);
    const uint4* from = dy + t * PIXELS * EIGHTS;
#pragma unroll
    for (int i = thread; i < PIXELS * EIGHTS; i += W_TEAM)
      copy16(gradient + i % EIGHTS * DY_PLANE + i / EIGHTS, from + i);
    read<K_CH, true, W_TEAM, 7>(tile, in, coef, thread, t);
    wait_for_copies();
    meet(team, W_TEAM);
#pragma unroll 2
    for (int s = 0; s < PIXELS / 16; s++) {
      const int place = s * 16 / SIZE * WIDE + s * 16 % SIZE;
      u32 b[EIGHTS / 2][4];
#pragma unroll
      for (int f = 0; f < EIGHTS / 2; f++)
        load4_transposed(b[f], at_dy + (f * 2 * DY_PLANE + s * 16) * 16);
#pragma unroll
      for (int tap = 0; tap < 3; tap++)
#pragma unroll
        for (int m = 0; m < K_CH / 16; m++) {
          u32 a[4];
          load4_transposed(a, at_x + (m * 2 * X_PLANE + place + tap) * 16);
#pragma unroll
          for (int f = 0; f < EIGHTS; f++)
            multiply(w[tap][m][f], a, b[f / 2][f % 2 * 2], b[f / 2][f % 2 * 2 + 1]);
        }
    }
  }

  // The teams add their results in shared memory, in the order of the weight.
  float* table = (float*)shared;
  for (int turn = 0; turn < TEAMS; turn++) {
    __syncthreads();
    if (team == turn)
#pragma unroll
      for (int tap = 0; tap < 3; tap++)
#pragma unroll
        for (int m = 0; m < K_CH / 16; m++)
#pragma unroll
          for (int f = 0; f < EIGHTS; f++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
              const int out = f * 8 + lane % 4 * 2 + i % 2, from = m * 16 + lane / 4 + i / 2 * 8;
              float* to = table + (out * 9 + tap_row * 3 + tap) * K_CH + from;
              *to = w[tap][m][f][i] + (turn ? *to : 0.f);
            }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 9 * K_CH * N_CH; i += W_THREADS)
    partial[blockIdx.x * 9 * K_CH * N_CH + i] = table[i];
}
#endif
