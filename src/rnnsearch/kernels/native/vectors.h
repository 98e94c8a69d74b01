// Vectors of floats and the functions of them that a recurrent step needs, for whatever width the machine has.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__AVX512F__) || defined(__AVXVNNI__)
#include <immintrin.h>
#endif

#ifdef __AVX512F__
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t VecInt __attribute__((vector_size(LANES * 4), aligned(4)));

static inline Vec load(const float* p) { Vec v; std::memcpy(&v, p, sizeof v); return v; }
static inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
static inline Vec all(float x) { return x - Vec{}; }
static inline Vec least(Vec a, Vec b) { return a < b ? a : b; }
static inline Vec most(Vec a, Vec b) { return a > b ? a : b; }

static inline float sum(Vec v) {
  float total = 0;
  for (int i = 0; i < LANES; i++) total += v[i];
  return total;
}

// 1 / x of numbers between 1 and 1e37, to the last bit or two.
static inline Vec reciprocal(Vec x) {
#ifdef __AVX512F__
  Vec r = (Vec)_mm512_rcp14_ps((__m512)x);
  return r * (2.0f - x * r);
#else
  return 1.0f / x;
#endif
}

// e^x to 1 or 2 units in the last place (Cephes' polynomial); NaN stays NaN.
static inline Vec exponential(Vec x) {
  x = x > 88.0f ? all(88.0f) : x;
  x = x < -87.0f ? all(-87.0f) : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  Vec n = (x * 1.44269504088896341f + magic) - magic;
  Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  VecInt scale = (__builtin_convertvector(n, VecInt) + 127) << 23;
  return p * (Vec)scale;
}

static inline Vec sigmoid(Vec x) { return reciprocal(1.0f + exponential(-x)); }
static inline Vec hyperbolic_tangent(Vec x) { return 1.0f - 2.0f * reciprocal(1.0f + exponential(x + x)); }

// fp32 to bf16, round to nearest, ties to even.
static inline uint16_t narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

static inline void narrow(const float* x, uint16_t* out, int64_t count) {
  int64_t i = 0;
#ifdef __AVX512BF16__
  for (; i + 16 <= count; i += 16) {
    __m256bh v = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
    std::memcpy(out + i, &v, 32);
  }
#endif
  for (; i < count; i++) out[i] = narrow(x[i]);
}
