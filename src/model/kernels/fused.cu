// Fused kernels, compiled by NVRTC for the card at hand; no header is needed. Every number is computed in f32 and
// rounded to the storage type T where Hugging Face's operators round. No atomics: each sum has one fixed order.
//
// A kernel is a body templated on T and on W, the elements of one access: 16 bytes' worth where the host has found
// every pointer and stride to fit (`wide`), else one.

typedef long long i64;
typedef unsigned long long u64;

struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

__device__ __forceinline__ float up(float x) { return x; }
__device__ __forceinline__ float up(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ float up(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

template <typename T> __device__ __forceinline__ T down(float x);
template <> __device__ __forceinline__ float down<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 down<bf16>(float x) {
  bf16 y;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  unsigned u = __float_as_uint(x);
  // Nearest, ties to even; a NaN stays one.
  y.bits = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
  return y;
}
template <> __device__ __forceinline__ f16 down<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

// x as it is after a round trip through T.
template <typename T> __device__ __forceinline__ float rounded(float x) { return up(down<T>(x)); }

template <typename T, int W> struct Pack {
  float v[W];
  __device__ __forceinline__ explicit Pack() {}
  __device__ __forceinline__ explicit Pack(const T* p) {
    if constexpr (W == 1) {
      v[0] = up(*p);
    } else {
      union { uint4 raw; T t[W]; } u;
      u.raw = *reinterpret_cast<const uint4*>(p);
#pragma unroll
      for (int i = 0; i < W; i++) v[i] = up(u.t[i]);
    }
  }
  __device__ __forceinline__ void store(T* p) const {
    if constexpr (W == 1) {
      *p = down<T>(v[0]);
    } else {
      union { uint4 raw; T t[W]; } u;
#pragma unroll
      for (int i = 0; i < W; i++) u.t[i] = down<T>(v[i]);
      *reinterpret_cast<uint4*>(p) = u.raw;
    }
  }
};

#define NEGATIVE_INFINITY __int_as_float(0xff800000)

// Sum or maximum over the block, the same in every thread. The block is a whole number of warps.
template <bool MAX> __device__ float block_reduce(float x) {
  __shared__ float part[32];
  for (int o = 16; o > 0; o >>= 1) {
    float y = __shfl_xor_sync(0xffffffffu, x, o);
    x = MAX ? fmaxf(x, y) : x + y;
  }
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  __syncthreads();  // an earlier reduction may still be read
  if (lane == 0) part[warp] = x;
  __syncthreads();
  x = lane < warps ? part[lane] : (MAX ? NEGATIVE_INFINITY : 0.0f);
  for (int o = 16; o > 0; o >>= 1) {
    float y = __shfl_xor_sync(0xffffffffu, x, o);
    x = MAX ? fmaxf(x, y) : x + y;
  }
  return x;
}

// ---- RMSNorm: a block per row of `n`; row r is head r % heads of token r / heads, tokens `stride` apart.

template <typename T, int W>
__device__ void rms_norm(T* out, const T* x, const T* w, i64 n, i64 heads, i64 stride, float eps) {
  i64 row = blockIdx.x;
  x += row / heads * stride + row % heads * n;
  out += row * n;
  float sum = 0.0f;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(x + i);
#pragma unroll
    for (int j = 0; j < W; j++) sum += a.v[j] * a.v[j];
  }
  float rstd = rsqrtf(block_reduce<false>(sum) / n + eps);
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(x + i), b(w + i);
#pragma unroll
    for (int j = 0; j < W; j++) a.v[j] = b.v[j] * rounded<T>(a.v[j] * rstd);
    a.store(out + i);
  }
}

// dy becomes dx: rstd·(w·dy) − x·rstd³·mean(w·dy·x), plus `residual` (dense, may be null).
template <typename T, int W>
__device__ void rms_norm_backward(T* dy, const T* x, const T* w, const T* residual, i64 n, i64 heads, i64 stride,
                                  i64 dy_stride, float eps) {
  i64 row = blockIdx.x;
  x += row / heads * stride + row % heads * n;
  dy += row / heads * dy_stride + row % heads * n;
  float sum = 0.0f, dot = 0.0f;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(x + i), b(w + i), d(dy + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
      sum += a.v[j] * a.v[j];
      dot += b.v[j] * d.v[j] * a.v[j];
    }
  }
  float rstd = rsqrtf(block_reduce<false>(sum) / n + eps);
  float pull = block_reduce<false>(dot) / n * rstd * rstd * rstd;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(x + i), b(w + i), d(dy + i);
#pragma unroll
    for (int j = 0; j < W; j++) d.v[j] = rstd * b.v[j] * d.v[j] - pull * a.v[j];
    if (residual) {
      Pack<T, W> r(residual + row * n + i);
#pragma unroll
      for (int j = 0; j < W; j++) d.v[j] += r.v[j];
    }
    d.store(dy + i);
  }
}

// ---- Rotary embedding in place: heads of q, then of k; sign −1 rotates back. cos, sin: [positions, half].

template <typename T, int W>
__device__ void rope(T* q, i64 q_heads, i64 q_stride, T* k, i64 k_heads, i64 k_stride, const T* cos, const T* sin,
                     i64 tokens, i64 positions, i64 half, float sign) {
  // 32 bits: the host has checked that they suffice, and 64-bit division is slow.
  unsigned packs = half / W, heads = q_heads + k_heads, at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (unsigned)tokens * heads * packs) return;
  i64 i = at % packs * W, head = at / packs % heads, token = at / packs / heads;
  T* x = head < q_heads ? q + token * q_stride + head * 2 * half
                        : k + token * k_stride + (head - q_heads) * 2 * half;
  i64 row = (unsigned)token % (unsigned)positions * half + i;
  Pack<T, W> a(x + i), b(x + half + i), c(cos + row), s(sin + row);
#pragma unroll
  for (int j = 0; j < W; j++) {
    float turn = sign * s.v[j], x1 = a.v[j], x2 = b.v[j];
    a.v[j] = rounded<T>(x1 * c.v[j]) - rounded<T>(x2 * turn);
    b.v[j] = rounded<T>(x2 * c.v[j]) + rounded<T>(x1 * turn);
  }
  a.store(x + i);
  b.store(x + half + i);
}

// ---- SwiGLU over n elements.

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// gate becomes silu(gate)·up.
template <typename T, int W> __device__ void swiglu(T* gate, const T* upper, i64 n) {
  i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * W;
  if (i >= n) return;
  Pack<T, W> g(gate + i), u(upper + i);
#pragma unroll
  for (int j = 0; j < W; j++) g.v[j] = rounded<T>(g.v[j] * sigmoid(g.v[j])) * u.v[j];
  g.store(gate + i);
}

// gate and up become their gradients; `da` becomes silu(gate)·up where the caller needs it.
template <typename T, int W> __device__ void swiglu_backward(T* gate, T* upper, T* da, int keep, i64 n) {
  i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * W;
  if (i >= n) return;
  Pack<T, W> g(gate + i), u(upper + i), d(da + i);
#pragma unroll
  for (int j = 0; j < W; j++) {
    float x = g.v[j], s = sigmoid(x), silu = rounded<T>(x * s), v = u.v[j], e = d.v[j];
    g.v[j] = e * v * (s * (1.0f + x * (1.0f - s)));
    u.v[j] = e * silu;
    d.v[j] = silu * v;
  }
  g.store(gate + i);
  u.store(upper + i);
  if (keep) d.store(da + i);
}

// ---- Dropout: model/dropout.rs's hash of element number first + i.

__device__ __forceinline__ bool kept(u64 key, u64 i, u64 threshold) {
  u64 z = i * 0x9E3779B97F4A7C15ull + key;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return ((z ^ (z >> 31)) >> 40) >= threshold;
}

// out = x·mask, or out += x·mask.
template <typename T, int W>
__device__ void dropout(T* out, const T* x, int add, i64 n, u64 key, u64 first, u64 threshold, float scale) {
  i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * W;
  if (i >= n) return;
  Pack<T, W> a(x + i);
#pragma unroll
  for (int j = 0; j < W; j++) a.v[j] = kept(key, first + i + j, threshold) ? rounded<T>(a.v[j] * scale) : 0.0f;
  if (add) {
    Pack<T, W> b(out + i);
#pragma unroll
    for (int j = 0; j < W; j++) a.v[j] += b.v[j];
  }
  a.store(out + i);
}

// ---- Cross-entropy: a block per row of n logits.

// loss[row] = log-sum-exp − logit of the label; with `grad`, logits become softmax − onehot.
template <typename T, int W>
__device__ void cross_entropy(T* logits, const i64* labels, float* loss, int grad, i64 n) {
  i64 row = blockIdx.x, label = labels[row];
  logits += row * n;
  float picked = up(logits[label]);  // before any thread overwrites it: the reductions lie between
  float max = NEGATIVE_INFINITY, sum = 0.0f;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(logits + i);
    float most = a.v[0];
#pragma unroll
    for (int j = 1; j < W; j++) most = fmaxf(most, a.v[j]);
    if (most > max) {
      sum *= expf(max - most);
      max = most;
    }
#pragma unroll
    for (int j = 0; j < W; j++) sum += max == NEGATIVE_INFINITY ? 0.0f : expf(a.v[j] - max);
  }
  float all = block_reduce<true>(max);
  sum = block_reduce<false>(max == NEGATIVE_INFINITY ? 0.0f : sum * expf(max - all));
  float lse = all + logf(sum);
  if (threadIdx.x == 0) loss[row] = lse - picked;
  if (!grad) return;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(logits + i);
#pragma unroll
    for (int j = 0; j < W; j++) a.v[j] = expf(a.v[j] - lse) - (i + j == label ? 1.0f : 0.0f);
    a.store(logits + i);
  }
}

// One vocabulary chunk of an online softmax. max, sum, picked: the row's state; scale: what its accumulated output
// shrinks by. With `grad`, logits become exp(logit − new max). Row 0 of the chunk is word `first`.
template <typename T, int W>
__device__ void online_softmax(T* logits, const i64* labels, float* max, float* sum, float* picked, float* scale,
                               int grad, i64 first, i64 n) {
  i64 row = blockIdx.x, label = labels[row] - first;
  logits += row * n;
  float before = max[row];
  bool here = label >= 0 && label < n;
  float mine = here ? up(logits[label]) : 0.0f;
  float most = NEGATIVE_INFINITY;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(logits + i);
#pragma unroll
    for (int j = 0; j < W; j++) most = fmaxf(most, a.v[j]);
  }
  float now = fmaxf(before, block_reduce<true>(most)), add = 0.0f;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(logits + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
      a.v[j] = expf(a.v[j] - now);
      add += a.v[j];
    }
    if (grad) a.store(logits + i);
  }
  add = block_reduce<false>(add);
  if (threadIdx.x == 0) {
    float shrink = before == NEGATIVE_INFINITY ? 0.0f : expf(before - now);
    max[row] = now;
    sum[row] = sum[row] * shrink + add;
    scale[row] = shrink;
    if (here) picked[row] = mine;
  }
}

// out[row] = w[labels[row] − first] where that lies in the chunk of `rows` rows; other rows stay.
template <typename T, int W>
__device__ void gather_rows(T* out, const T* w, const i64* labels, i64 first, i64 rows, i64 n) {
  i64 row = blockIdx.x, at = labels[row] - first;
  if (at < 0 || at >= rows) return;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) Pack<T, W>(w + at * n + i).store(out + row * n + i);
}

// ---- AdamW: the operations of train/optim.rs in their order, each rounded as torch's kernels round.

extern "C" __global__ void adamw(float* p, float* m, float* v, const float* g, i64 n, float decay, float lerp,
                                 float beta2, float rest2, float inverse2, float eps, float step) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float d = g[i], a = fmaf(lerp, d - m[i], m[i]);
  float b = __fadd_rn(__fmul_rn(v[i], beta2), __fmul_rn(__fmul_rn(d, d), rest2));
  float under = __fadd_rn(__fmul_rn(__fsqrt_rn(b), inverse2), eps);
  m[i] = a;
  v[i] = b;
  p[i] = __fsub_rn(__fmul_rn(p[i], decay), __fmul_rn(__fdiv_rn(a, under), step));
}

#define WIDE(T, call, ...) \
  if (wide) call<T, 16 / sizeof(T)>(__VA_ARGS__); else call<T, 1>(__VA_ARGS__)

#define KERNELS(T, S)                                                                                                \
  extern "C" __global__ void rms_norm_##S(T* out, const T* x, const T* w, i64 n, i64 heads, i64 stride, float eps,  \
                                          int wide) {                                                                \
    WIDE(T, rms_norm, out, x, w, n, heads, stride, eps);                                                             \
  }                                                                                                                  \
  extern "C" __global__ void rms_norm_backward_##S(T* dy, const T* x, const T* w, const T* residual, i64 n,          \
                                                   i64 heads, i64 stride, i64 dy_stride, float eps, int wide) {      \
    WIDE(T, rms_norm_backward, dy, x, w, residual, n, heads, stride, dy_stride, eps);                                \
  }                                                                                                                  \
  extern "C" __global__ void rope_##S(T* q, i64 q_heads, i64 q_stride, T* k, i64 k_heads, i64 k_stride,              \
                                      const T* cos, const T* sin, i64 tokens, i64 positions, i64 half, float sign,   \
                                      int wide) {                                                                    \
    WIDE(T, rope, q, q_heads, q_stride, k, k_heads, k_stride, cos, sin, tokens, positions, half, sign);              \
  }                                                                                                                  \
  extern "C" __global__ void swiglu_##S(T* gate, const T* upper, i64 n, int wide) {                                  \
    WIDE(T, swiglu, gate, upper, n);                                                                                 \
  }                                                                                                                  \
  extern "C" __global__ void swiglu_backward_##S(T* gate, T* upper, T* da, int keep, i64 n, int wide) {              \
    WIDE(T, swiglu_backward, gate, upper, da, keep, n);                                                              \
  }                                                                                                                  \
  extern "C" __global__ void dropout_##S(T* out, const T* x, int add, i64 n, u64 key, u64 first, u64 threshold,      \
                                         float scale, int wide) {                                                    \
    WIDE(T, dropout, out, x, add, n, key, first, threshold, scale);                                                  \
  }                                                                                                                  \
  extern "C" __global__ void cross_entropy_##S(T* logits, const i64* labels, float* loss, int grad, i64 n,           \
                                               int wide) {                                                           \
    WIDE(T, cross_entropy, logits, labels, loss, grad, n);                                                           \
  }                                                                                                                  \
  extern "C" __global__ void online_softmax_##S(T* logits, const i64* labels, float* max, float* sum, float* picked, \
                                                float* scale, int grad, i64 first, i64 n, int wide) {                \
    WIDE(T, online_softmax, logits, labels, max, sum, picked, scale, grad, first, n);                                \
  }                                                                                                                  \
  extern "C" __global__ void gather_rows_##S(T* out, const T* w, const i64* labels, i64 first, i64 rows, i64 n,      \
                                             int wide) {                                                             \
    WIDE(T, gather_rows, out, w, labels, first, rows, n);                                                            \
  }

KERNELS(float, f32)
KERNELS(bf16, bf16)
KERNELS(f16, f16)
