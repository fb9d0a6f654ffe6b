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

// ---- RMSNorm: a block per row of `n`; row r is head r % heads of token r / heads, tokens `stride` apart. The weight is
// w + shift; with `early`, the normed value is rounded before the weight multiplies it.

template <typename T, int W>
__device__ void rms_norm(T* out, const T* x, const T* w, i64 n, i64 heads, i64 stride, float eps, float shift,
                         int early) {
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
    for (int j = 0; j < W; j++) {
      float normed = a.v[j] * rstd;
      a.v[j] = early ? b.v[j] * rounded<T>(normed) : (b.v[j] + shift) * normed;
    }
    a.store(out + i);
  }
}

// dy becomes dx: rstd·(w·dy) − x·rstd³·mean(w·dy·x), w with its shift, plus `residual` (dense, may be null).
template <typename T, int W>
__device__ void rms_norm_backward(T* dy, const T* x, const T* w, const T* residual, i64 n, i64 heads, i64 stride,
                                  i64 dy_stride, float eps, float shift) {
  i64 row = blockIdx.x;
  x += row / heads * stride + row % heads * n;
  dy += row / heads * dy_stride + row % heads * n;
  float sum = 0.0f, dot = 0.0f;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(x + i), b(w + i), d(dy + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
      sum += a.v[j] * a.v[j];
      dot += (b.v[j] + shift) * d.v[j] * a.v[j];
    }
  }
  float rstd = rsqrtf(block_reduce<false>(sum) / n + eps);
  float pull = block_reduce<false>(dot) / n * rstd * rstd * rstd;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(x + i), b(w + i), d(dy + i);
#pragma unroll
    for (int j = 0; j < W; j++) d.v[j] = rstd * (b.v[j] + shift) * d.v[j] - pull * a.v[j];
    if (residual) {
      Pack<T, W> r(residual + row * n + i);
#pragma unroll
      for (int j = 0; j < W; j++) d.v[j] += r.v[j];
    }
    d.store(dy + i);
  }
}

// ---- Rotary embedding in place: heads of q, then of k; sign −1 rotates back. cos, sin: [positions, half], of type T; in
// f32 where the rotation is `exact`: its products are then not rounded.

template <typename T, int W>
__device__ void rope(T* q, i64 q_heads, i64 q_stride, T* k, i64 k_heads, i64 k_stride, const void* cos, const void* sin,
                     i64 tokens, i64 positions, i64 half, float sign, int exact) {
  // 32 bits: the host has checked that they suffice, and 64-bit division is slow.
  unsigned packs = half / W, heads = q_heads + k_heads, at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (unsigned)tokens * heads * packs) return;
  i64 i = at % packs * W, head = at / packs % heads, token = at / packs / heads;
  T* x = head < q_heads ? q + token * q_stride + head * 2 * half
                        : k + token * k_stride + (head - q_heads) * 2 * half;
  i64 row = (unsigned)token % (unsigned)positions * half + i;
  Pack<T, W> a(x + i), b(x + half + i), c, s;
  if (exact) {
#pragma unroll
    for (int j = 0; j < W; j++) {
      c.v[j] = ((const float*)cos)[row + j];
      s.v[j] = ((const float*)sin)[row + j];
    }
  } else {
    c = Pack<T, W>((const T*)cos + row);
    s = Pack<T, W>((const T*)sin + row);
  }
#pragma unroll
  for (int j = 0; j < W; j++) {
    float turn = sign * s.v[j], x1 = a.v[j], x2 = b.v[j];
    float up1 = x1 * c.v[j], up2 = x2 * turn, down1 = x2 * c.v[j], down2 = x1 * turn;
    a.v[j] = exact ? up1 - up2 : rounded<T>(up1) - rounded<T>(up2);
    b.v[j] = exact ? down1 + down2 : rounded<T>(down1) + rounded<T>(down2);
  }
  a.store(x + i);
  b.store(x + half + i);
}

// ---- A gated activation over n elements: 0 is SiLU, 1 is GeLU by its tanh form.

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// An activation's value and slope at x.
__device__ __forceinline__ float activation(int act, float x, float* slope) {
  if (act == 0) {
    float s = sigmoid(x);
    *slope = s * (1.0f + x * (1.0f - s));
    return x * s;
  }
  const float root = 0.7978845608028654f, cubic = 0.044715f;
  float square = x * x, t = tanhf(root * x * (1.0f + cubic * square));
  *slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * root * (1.0f + 3.0f * cubic * square);
  return 0.5f * x * (1.0f + t);
}

// gate becomes act(gate)·up.
template <typename T, int W> __device__ void glu(T* gate, const T* upper, int act, i64 n) {
  i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * W;
  if (i >= n) return;
  Pack<T, W> g(gate + i), u(upper + i);
#pragma unroll
  for (int j = 0; j < W; j++) {
    float slope;
    g.v[j] = rounded<T>(activation(act, g.v[j], &slope)) * u.v[j];
  }
  g.store(gate + i);
}

// gate and up become their gradients; `da` becomes act(gate)·up where the caller needs it.
template <typename T, int W> __device__ void glu_backward(T* gate, T* upper, T* da, int act, int keep, i64 n) {
  i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * W;
  if (i >= n) return;
  Pack<T, W> g(gate + i), u(upper + i), d(da + i);
#pragma unroll
  for (int j = 0; j < W; j++) {
    float slope, value = rounded<T>(activation(act, g.v[j], &slope)), v = u.v[j], e = d.v[j];
    g.v[j] = e * v * slope;
    u.v[j] = e * value;
    d.v[j] = value * v;
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

// ---- Soft cap: cap·tanh(x / cap), and its slope where it gave y; a cap of 0 is none.

__device__ __forceinline__ float capped(float x, float cap) { return cap == 0.0f ? x : cap * tanhf(x / cap); }
__device__ __forceinline__ float cap_slope(float y, float cap) {
  float t = y / cap;
  return cap == 0.0f ? 1.0f : 1.0f - t * t;
}

// ---- Attention's weights: a block per row of n products. Row r is of the query at `query` + r % rows / group, column i
// of the key at `key` + i; a key is visible from 0 to below `window` places back. Products become weights; `d`, the
// gradient of the weights, where it is there, becomes that of the products.

template <typename T, int W>
__device__ void attend(T* products, T* d, float scale, float cap, i64 window, i64 query, i64 key, i64 group, i64 rows,
                       i64 n) {
  i64 row = blockIdx.x, end = query + row % rows / group - key + 1, first = end - window;
  products += row * n;
  if (d) d += row * n;
  float max = NEGATIVE_INFINITY, sum = 0.0f, dot = 0.0f;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(products + i);
#pragma unroll
    for (int j = 0; j < W; j++)
      if (i + j >= first && i + j < end) max = fmaxf(max, capped(a.v[j] * scale, cap));
  }
  max = block_reduce<true>(max);
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(products + i);
#pragma unroll
    for (int j = 0; j < W; j++)
      if (i + j >= first && i + j < end) sum += expf(capped(a.v[j] * scale, cap) - max);
  }
  float inverse = 1.0f / block_reduce<false>(sum);
  if (d) {
    for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
      Pack<T, W> a(products + i), g(d + i);
#pragma unroll
      for (int j = 0; j < W; j++)
        if (i + j >= first && i + j < end) dot += expf(capped(a.v[j] * scale, cap) - max) * inverse * g.v[j];
    }
    dot = block_reduce<false>(dot);
  }
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(products + i), slope;
#pragma unroll
    for (int j = 0; j < W; j++) {
      bool seen = i + j >= first && i + j < end;
      float y = capped(a.v[j] * scale, cap);
      a.v[j] = seen ? expf(y - max) * inverse : 0.0f;
      slope.v[j] = cap_slope(y, cap) * scale;
    }
    if (d) {
      Pack<T, W> g(d + i);
#pragma unroll
      for (int j = 0; j < W; j++) g.v[j] = a.v[j] == 0.0f ? 0.0f : a.v[j] * (g.v[j] - dot) * slope.v[j];
      g.store(d + i);
    }
    a.store(products + i);
  }
}

// ---- Cross-entropy: a block per row of n products, the logits before their cap.

// loss[row] = log-sum-exp − logit of the label; with `grad`, products become (softmax − onehot) · the cap's slope.
template <typename T, int W>
__device__ void cross_entropy(T* logits, const i64* labels, float* loss, float cap, int grad, i64 n) {
  i64 row = blockIdx.x, label = labels[row];
  logits += row * n;
  float picked = capped(up(logits[label]), cap);  // before any thread overwrites it: the reductions lie between
  float max = NEGATIVE_INFINITY, sum = 0.0f;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(logits + i);
    if (cap != 0.0f) {
#pragma unroll
      for (int j = 0; j < W; j++) a.v[j] = capped(a.v[j], cap);
    }
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
    for (int j = 0; j < W; j++) {
      float y = capped(a.v[j], cap), d = expf(y - lse) - (i + j == label ? 1.0f : 0.0f);
      a.v[j] = cap == 0.0f ? d : d * cap_slope(y, cap);
    }
    a.store(logits + i);
  }
}

// One vocabulary chunk of an online softmax over capped logits. max, sum, picked: the row's state; scale: what its
// accumulated output shrinks by. With `grad`, products become exp(logit − new max) · the cap's slope. Row 0 of the chunk
// is word `first`.
template <typename T, int W>
__device__ void online_softmax(T* logits, const i64* labels, float* max, float* sum, float* picked, float* scale,
                               float cap, int grad, i64 first, i64 n) {
  i64 row = blockIdx.x, label = labels[row] - first;
  logits += row * n;
  float before = max[row];
  bool here = label >= 0 && label < n;
  float mine = here ? capped(up(logits[label]), cap) : 0.0f;
  float most = NEGATIVE_INFINITY;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(logits + i);
#pragma unroll
    for (int j = 0; j < W; j++) most = fmaxf(most, capped(a.v[j], cap));
  }
  float now = fmaxf(before, block_reduce<true>(most)), add = 0.0f;
  for (i64 i = threadIdx.x * W; i < n; i += blockDim.x * W) {
    Pack<T, W> a(logits + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
      float y = capped(a.v[j], cap), e = expf(y - now);
      add += e;
      a.v[j] = cap == 0.0f ? e : e * cap_slope(y, cap);
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
                                          float shift, int early, int wide) {                                        \
    WIDE(T, rms_norm, out, x, w, n, heads, stride, eps, shift, early);                                               \
  }                                                                                                                  \
  extern "C" __global__ void rms_norm_backward_##S(T* dy, const T* x, const T* w, const T* residual, i64 n,          \
                                                   i64 heads, i64 stride, i64 dy_stride, float eps, float shift,     \
                                                   int wide) {                                                       \
    WIDE(T, rms_norm_backward, dy, x, w, residual, n, heads, stride, dy_stride, eps, shift);                         \
  }                                                                                                                  \
  extern "C" __global__ void rope_##S(T* q, i64 q_heads, i64 q_stride, T* k, i64 k_heads, i64 k_stride,              \
                                      const void* cos, const void* sin, i64 tokens, i64 positions, i64 half,         \
                                      float sign, int exact, int wide) {                                             \
    WIDE(T, rope, q, q_heads, q_stride, k, k_heads, k_stride, cos, sin, tokens, positions, half, sign, exact);       \
  }                                                                                                                  \
  extern "C" __global__ void glu_##S(T* gate, const T* upper, int act, i64 n, int wide) {                            \
    WIDE(T, glu, gate, upper, act, n);                                                                               \
  }                                                                                                                  \
  extern "C" __global__ void glu_backward_##S(T* gate, T* upper, T* da, int act, int keep, i64 n, int wide) {        \
    WIDE(T, glu_backward, gate, upper, da, act, keep, n);                                                            \
  }                                                                                                                  \
  extern "C" __global__ void attend_##S(T* products, T* d, float scale, float cap, i64 window, i64 query, i64 key,   \
                                        i64 group, i64 rows, i64 n, int wide) {                                      \
    WIDE(T, attend, products, d, scale, cap, window, query, key, group, rows, n);                                    \
  }                                                                                                                  \
  extern "C" __global__ void dropout_##S(T* out, const T* x, int add, i64 n, u64 key, u64 first, u64 threshold,      \
                                         float scale, int wide) {                                                    \
    WIDE(T, dropout, out, x, add, n, key, first, threshold, scale);                                                  \
  }                                                                                                                  \
  extern "C" __global__ void cross_entropy_##S(T* logits, const i64* labels, float* loss, float cap, int grad,       \
                                               i64 n, int wide) {                                                    \
    WIDE(T, cross_entropy, logits, labels, loss, cap, grad, n);                                                      \
  }                                                                                                                  \
  extern "C" __global__ void online_softmax_##S(T* logits, const i64* labels, float* max, float* sum, float* picked, \
                                                float* scale, float cap, int grad, i64 first, i64 n, int wide) {     \
    WIDE(T, online_softmax, logits, labels, max, sum, picked, scale, cap, grad, first, n);                           \
  }                                                                                                                  \
  extern "C" __global__ void gather_rows_##S(T* out, const T* w, const i64* labels, i64 first, i64 rows, i64 n,      \
                                             int wide) {                                                             \
    WIDE(T, gather_rows, out, w, labels, first, rows, n);                                                            \
  }

KERNELS(float, f32)
KERNELS(bf16, bf16)
KERNELS(f16, f16)
