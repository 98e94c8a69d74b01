// The inner loop of every matrix product here: rows of x times panels of weights, 4 bytes of each row at a step.
//
// A panel is LANES lines of a weight matrix side by side; a step of it holds one fp32, two bf16 or four bytes of each
// line. Sums stay in registers. Each is formed in the order of the steps, whatever the number of rows and panels.
#pragma once

#include "vectors.h"

enum Kind : int32_t { FP32 = 0, BF16 = 1, INT8 = 2 };

constexpr Index each_step(Index kind) { return kind == FP32 ? 1 : kind == BF16 ? 2 : 4; }

template <class T>
constexpr int KIND_OF = sizeof(T) == 2 ? BF16 : FP32;

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define BF16_PAIRS 1  // one instruction multiplies pairs of bf16 and adds the products
#endif

#if defined(__wasm_simd128__)
constexpr int ROWS = 4, PANELS = 2;  // 8 in 16, beside bytes that are made longer
#elif defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int ROWS = 8, PANELS = 3;  // 24 sums in 32 registers
#else
constexpr int ROWS = 4, PANELS = 3;  // 12 in 16
#endif

// Sums of a kind: exact in int8. (As another type's bits they would be copied at every step.)
template <int KIND>
struct SumOf {
    typedef Vec type;
};
template <>
struct SumOf<INT8> {
    typedef VecInt type;
};

#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
#define BYTES_WITH_SIGNS 1  // both factors have one: 128 is taken from each byte of x, and sums begin without their excess
#endif

// sum + w x: w the panel's step, x the 4 bytes of a row; bytes of x have no sign.
template <int KIND>
static inline typename SumOf<KIND>::type multiply_add(typename SumOf<KIND>::type sum, Vec w, float x) {
    if constexpr (KIND == FP32) return sum + w * x;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if constexpr (KIND == INT8) {
#if defined(__AVX512VNNI__)
        return (VecInt)_mm512_dpbusd_epi32((__m512i)sum, _mm512_castps_si512(_mm512_set1_ps(x)), (__m512i)w);
#elif defined(__AVXVNNI__)
        return (VecInt)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_castps_si256(_mm256_set1_ps(x)), (__m256i)w);
#elif defined(__ARM_FEATURE_MATMUL_INT8)
        return (VecInt)vusdotq_s32((int32x4_t)sum, (uint8x16_t)vdupq_n_u32(bits), (int8x16_t)w);
#elif defined(BYTES_WITH_SIGNS)
        return (VecInt)vdotq_s32((int32x4_t)sum, (int8x16_t)vdupq_n_u32(bits ^ 0x80808080u), (int8x16_t)w);
#else
        VecInt total = sum, four = (VecInt)w;
        for (int i = 0; i < 4; i++) total += ((four << (24 - 8 * i)) >> 24) * (int32_t)((bits >> (8 * i)) & 255);
        return total;
#endif
    }
    if constexpr (KIND == BF16) {
#if defined(__AVX512BF16__)
        const __m512bh pair = (__m512bh)_mm512_castps_si512(_mm512_set1_ps(x));
        return (Vec)_mm512_dpbf16_ps((__m512)sum, pair, (__m512bh)w);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
        return (Vec)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)w, (bfloat16x8_t)vdupq_n_u32(bits));
#endif
    }
}

typedef float Word __attribute__((aligned(2), may_alias));  // 4 bytes of a row, whatever numbers they are

// Where nothing multiplies bytes by fours, but something pairs of 16 bits.
#if defined(__wasm_simd128__) || (defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__))
#define BYTES_AS_PAIRS 1
typedef int16_t Shorts __attribute__((vector_size(LANES * 4)));
typedef uint16_t UnsignedShorts __attribute__((vector_size(LANES * 4)));

// 2 LANES bytes in 16 bits each; 4 bytes of a row over and over; the sums of pairs of products.
#ifdef __wasm_simd128__
static inline Shorts longer(const float* bytes) { return (Shorts)wasm_i16x8_load8x8(bytes); }
static inline Shorts everywhere(const Word* four) { return (Shorts)wasm_v128_load32_splat(four); }
static inline VecInt pair_sums(Shorts a, Shorts b) { return (VecInt)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b); }
#elif defined(__AVX512BW__)
static inline Shorts longer(const float* bytes) { return (Shorts)_mm512_cvtepi8_epi16(_mm256_loadu_si256((__m256i*)bytes)); }
static inline Shorts everywhere(const Word* four) { return (Shorts)_mm512_castps_si512(_mm512_set1_ps(*four)); }
static inline VecInt pair_sums(Shorts a, Shorts b) { return (VecInt)_mm512_madd_epi16((__m512i)a, (__m512i)b); }
#else
static inline Shorts longer(const float* bytes) { return (Shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128((__m128i*)bytes)); }
static inline Shorts everywhere(const Word* four) { return (Shorts)_mm256_castps_si256(_mm256_set1_ps(*four)); }
static inline VecInt pair_sums(Shorts a, Shorts b) { return (VecInt)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
#endif

// The same of bytes, which are multiplied as pairs of 16 bits: the first and third of each line lie in the lower half of
// a panel's step, the second and fourth in the upper one, as a row's are had with a mask and a shift.
template <int R, int P>
static inline void add_bytes(const Word* x, Index by_row, Index by_step, const float* panels, Index panel_size,
                             Index steps, VecInt (&sums)[R][P]) {
    for (Index k = 0; k < steps; k++) {
        Shorts even[P], odd[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) {
            const float* step = panels + p * panel_size + k * LANES;
            even[p] = longer(step);
            odd[p] = longer(step + LANES / 2);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const Shorts four = everywhere(x + r * by_row + k * by_step), first = four & 255;
            const Shorts second = (Shorts)((UnsignedShorts)four >> 8);
#pragma GCC unroll 8
            for (int p = 0; p < P; p++) sums[r][p] += pair_sums(even[p], first) + pair_sums(odd[p], second);
        }
    }
}
#endif

#ifndef BF16_PAIRS
// The first numbers of a panel's step in bf16, or the second ones, in fp32.
template <int SECOND>
static inline Vec half(const float* step) {
    const Words pair = (Words)load(step);
    return (Vec)(SECOND ? pair & 0xffff0000u : pair << 16);
}

// The same of bf16 where nothing multiplies pairs. The numbers of x are in fp32, two a step.
template <int R, int P>
static inline void add_pairs(const Word* x, Index by_row, const float* panels, Index panel_size, Index steps,
                             Vec (&sums)[R][P]) {
    for (Index k = 0; k < steps; k++) {
        Vec first[P], second[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) {
            first[p] = half<0>(panels + p * panel_size + k * LANES);
            second[p] = half<1>(panels + p * panel_size + k * LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const Word* pair = x + r * by_row + 2 * k;
#pragma GCC unroll 8
            for (int p = 0; p < P; p++) sums[r][p] = sums[r][p] + first[p] * pair[0] + second[p] * pair[1];
        }
    }
}
#endif

// Adds R rows of x times P panels to sums. In units of 4 bytes: rows of x are by_row apart, its steps by_step.
template <int KIND, int R, int P>
static inline void add_block(const Word* x, Index by_row, Index by_step, const float* panels, Index panel_size,
                             Index steps, typename SumOf<KIND>::type (&sums)[R][P]) {
#ifdef BYTES_AS_PAIRS
    if constexpr (KIND == INT8) return add_bytes<R, P>(x, by_row, by_step, panels, panel_size, steps, sums);
#endif
#ifndef BF16_PAIRS
    if constexpr (KIND == BF16) add_pairs<R, P>(x, by_row, panels, panel_size, steps, sums);
    else
#endif
    for (Index k = 0; k < steps; k++) {
        Vec w[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) w[p] = load(panels + p * panel_size + k * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const float number = x[r * by_row + k * by_step];
#pragma GCC unroll 8
            for (int p = 0; p < P; p++) sums[r][p] = multiply_add<KIND>(sums[r][p], w[p], number);
        }
    }
}
