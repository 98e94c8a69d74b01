// SIMD vectors of floats, as wide as the registers of the instruction set, and elementwise
// functions of them.
//
// Loads and stores go through unaligned vector types instead of `memcpy`, which some compilers
// split in two or route through the stack when they are tuned for narrow moves.
#pragma once

#include "common.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

/// Floats per vector.
#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__ARM_NEON) || defined(__wasm_simd128__)
constexpr int LANES = 4;
#else
constexpr int LANES = 8;
#endif

#define UNALIGNED_VECTOR(T) \
    __attribute__((vector_size(LANES * sizeof(T)), aligned(sizeof(T)), may_alias))

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t VecInt __attribute__((vector_size(LANES * 4)));
typedef uint32_t VecUint __attribute__((vector_size(LANES * 4)));
typedef uint16_t Bf16Bits __attribute__((vector_size(LANES * 2)));  // LANES bf16 values
typedef float UnalignedVec UNALIGNED_VECTOR(float);
typedef int32_t UnalignedVecInt UNALIGNED_VECTOR(int32_t);
typedef uint16_t UnalignedBf16Bits UNALIGNED_VECTOR(uint16_t);

/// The upper half of an fp32 value.
struct bfloat16 {
    uint16_t bits;
};

static inline Vec load(const float* p) { return *(const UnalignedVec*)p; }
static inline VecInt load(const int32_t* p) { return *(const UnalignedVecInt*)p; }
static inline Vec load(const bfloat16* p) {
    return (Vec)(__builtin_convertvector((Bf16Bits) * (const UnalignedBf16Bits*)p, VecUint) << 16);
}

static inline void store(float* p, Vec v) { *(UnalignedVec*)p = v; }

/// Rounds fp32 to bf16: to nearest, ties to even; NaN stays NaN.
static inline Bf16Bits round_to_bf16(Vec x) {
#if defined(__AVX512BF16__)
    return (Bf16Bits)_mm512_cvtneps_pbh((__m512)x);
#else
    VecUint bits = (VecUint)x;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector(x == x ? bits : bits | 0x7fc0, Bf16Bits);
#endif
}
static inline void store(bfloat16* p, Vec x) { *(UnalignedBf16Bits*)p = round_to_bf16(x); }

/// Loads the first `n` lanes; the remaining lanes are 0. All lanes if n >= LANES, none if n <= 0.
template <class T>
static inline Vec load(const T* p, Index n) {
    if (n >= LANES) return load(p);
    T lanes[LANES] = {};
    if (n > 0) memcpy(lanes, p, n * sizeof(T));
    return load(lanes);
}
/// Stores the first `n` lanes; memory behind them is left unchanged.
template <class T>
static inline void store(T* p, Vec x, Index n) {
    if (n >= LANES) return store(p, x);
    if (n <= 0) return;
    T lanes[LANES];
    store(lanes, x);
    memcpy(p, lanes, n * sizeof(T));
}

/// A value rounded to bf16 but stored as fp32, for processors without a bf16 dot product.
struct WidenedBf16 {
    float value;
};
static inline void store(WidenedBf16* p, Vec x) {
    store((float*)p, (Vec)(__builtin_convertvector(round_to_bf16(x), VecUint) << 16));
}

/// Converts n elements from one floating-point type to another.
template <class S, class T>
static inline void convert(const S* from, Index n, T* to) {
    for (Index i = 0; i < n; i += LANES) store(to + i, load(from + i, n - i), n - i);
}

static inline Vec broadcast(float x) { return x - Vec{}; }
static inline Vec min(Vec a, Vec b) { return a < b ? a : b; }
static inline Vec max(Vec a, Vec b) { return a > b ? a : b; }

/// Horizontal sum, in the order of the lanes.
static inline float sum(Vec v) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
}

/// 1 / x for x in 1 .. 1e37, accurate to 1 or 2 units in the last place.
static inline Vec vec_reciprocal(Vec x) {
#ifdef __AVX512F__
    Vec r = (Vec)_mm512_rcp14_ps((__m512)x);
    return r * (2.0f - x * r);  // one Newton step
#else
    return 1.0f / x;
#endif
}

/// e^x, accurate to 1 or 2 units in the last place (polynomial of the Cephes library). x is clamped
/// to -87 .. 88; NaN stays NaN.
static inline Vec vec_exp(Vec x) {
    x = x > 88.0f ? broadcast(88.0f) : x;
    x = x < -87.0f ? broadcast(-87.0f) : x;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    Vec n = (x * 1.44269504088896341f + magic) - magic;  // x = n ln 2 + r
    Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Vec p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    VecInt scale = (__builtin_convertvector(n, VecInt) + 127) << 23;  // 2^n
    return p * (Vec)scale;
}

static inline Vec vec_sigmoid(Vec x) { return vec_reciprocal(1.0f + vec_exp(-x)); }
static inline Vec vec_tanh(Vec x) { return 1.0f - 2.0f * vec_reciprocal(1.0f + vec_exp(x + x)); }
