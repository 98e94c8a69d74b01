// Vectors of floats and the functions of them that a recurrent step needs, as wide as the variant's registers.
//
// Memory is read and written through types of a vector's whole width: a copy of bytes would be split in two, or go by
// the stack, wherever a compiler's tuning prefers narrow moves.
#pragma once

#include "plain.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__ARM_NEON) || defined(__wasm_simd128__)
constexpr int LANES = 4;
#else
constexpr int LANES = 8;
#endif

#define IN_MEMORY(NUMBER) __attribute__((vector_size(LANES * sizeof(NUMBER)), aligned(sizeof(NUMBER)), may_alias))

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t VecInt __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef float VecInMemory IN_MEMORY(float);
typedef int32_t VecIntInMemory IN_MEMORY(int32_t);
typedef uint16_t HalvesInMemory IN_MEMORY(uint16_t);

struct bfloat16 {
    uint16_t bits;
};

static inline Vec load(const float* p) { return *(const VecInMemory*)p; }
static inline VecInt load(const int32_t* p) { return *(const VecIntInMemory*)p; }
static inline Vec load(const bfloat16* p) {
    return (Vec)(__builtin_convertvector((Halves) * (const HalvesInMemory*)p, Words) << 16);
}

static inline void store(float* p, Vec v) { *(VecInMemory*)p = v; }

static inline Halves rounded(Vec x) {  // to nearest, ties to even
#if defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
    Words bits = (Words)x;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector(x == x ? bits : bits | 0x7fc0, Halves);
#endif
}
static inline void store(bfloat16* p, Vec x) { *(HalvesInMemory*)p = rounded(x); }

// `n` lanes where fewer than all are left; the others are 0 (load) or untouched (store).
template <class T>
static inline Vec load(const T* p, Index n) {
    if (n >= LANES) return load(p);
    T few[LANES] = {};
    if (n > 0) memcpy(few, p, n * sizeof(T));
    return load(few);
}
template <class T>
static inline void store(T* p, Vec x, Index n) {
    if (n >= LANES) return store(p, x);
    if (n <= 0) return;
    T few[LANES];
    store(few, x);
    memcpy(p, few, n * sizeof(T));
}

// A number of bf16 in fp32.
struct Widened {
    float number;
};
static inline void store(Widened* p, Vec x) {
    store((float*)p, (Vec)(__builtin_convertvector(rounded(x), Words) << 16));
}

// n numbers as those of another type.
template <class S, class T>
static inline void copy(const S* from, Index n, T* to) {
    for (Index i = 0; i < n; i += LANES) store(to + i, load(from + i, n - i), n - i);
}

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
