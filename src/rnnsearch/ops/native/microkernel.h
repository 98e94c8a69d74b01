// Register-blocked inner loop of all matrix products: rows of x times panels of weights.
//
// A panel holds LANES rows of a weight matrix, interleaved by 4-byte words along k: each word has
// one fp32, two bf16 or four int8 values of a row. Accumulators stay in registers. The order of
// summation depends only on k, not on the number of rows and panels, so that an element's value
// does not depend on the batch.
#pragma once

#include "vectors.h"

/// Element type of a product's operands.
enum DType : int32_t { FP32 = 0, BF16 = 1, INT8 = 2 };

constexpr Index elements_per_word(Index dtype) { return dtype == FP32 ? 1 : dtype == BF16 ? 2 : 4; }

template <class T>
constexpr int DTYPE_OF = sizeof(T) == 2 ? BF16 : FP32;

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define HAS_BF16_DOT 1  // an instruction multiplies pairs of bf16 and adds the products in fp32
#endif

// Largest block of rows and panels whose accumulators fit into the registers.
#if defined(__wasm_simd128__)
constexpr int BLOCK_ROWS = 4, BLOCK_PANELS = 2;  // 8 of 16 registers; others widen int8 values
#elif defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int BLOCK_ROWS = 8, BLOCK_PANELS = 3;  // 24 of 32 registers
#else
constexpr int BLOCK_ROWS = 4, BLOCK_PANELS = 3;  // 12 of 16 registers
#endif

/// Vector of accumulators: int32 (exact) for int8, else fp32.
///
/// A single type, reinterpreted for int8, would make the compiler copy accumulators at every step.
template <int DTYPE>
struct Accumulator {
    typedef Vec type;
};
template <>
struct Accumulator<INT8> {
    typedef VecInt type;
};

// Int8 inputs x are stored as unsigned bytes, x + 128 (the zero point). Where the dot product takes
// only signed operands, 128 is subtracted again from each byte, and accumulators start without the
// zero-point correction.
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
#define SIGNED_INT8_INPUTS 1
#endif

/// Returns sum + w x, where w holds one word of each of LANES rows of weights and x one word of an
/// input row.
template <int DTYPE>
static inline typename Accumulator<DTYPE>::type multiply_add(typename Accumulator<DTYPE>::type sum,
                                                             Vec w, float x) {
    if constexpr (DTYPE == FP32) return sum + w * x;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if constexpr (DTYPE == INT8) {
#if defined(__AVX512VNNI__)
        return (VecInt)_mm512_dpbusd_epi32((__m512i)sum, _mm512_castps_si512(_mm512_set1_ps(x)),
                                           (__m512i)w);
#elif defined(__AVXVNNI__)
        return (VecInt)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_castps_si256(_mm256_set1_ps(x)),
                                               (__m256i)w);
#elif defined(__ARM_FEATURE_MATMUL_INT8)
        return (VecInt)vusdotq_s32((int32x4_t)sum, (uint8x16_t)vdupq_n_u32(bits), (int8x16_t)w);
#elif defined(SIGNED_INT8_INPUTS)
        return (VecInt)vdotq_s32((int32x4_t)sum, (int8x16_t)vdupq_n_u32(bits ^ 0x80808080u),
                                 (int8x16_t)w);
#else
        VecInt total = sum, words = (VecInt)w;
        for (int i = 0; i < 4; i++)
            total += ((words << (24 - 8 * i)) >> 24) * (int32_t)((bits >> (8 * i)) & 255);
        return total;
#endif
    }
    if constexpr (DTYPE == BF16) {
#if defined(__AVX512BF16__)
        const __m512bh pair = (__m512bh)_mm512_castps_si512(_mm512_set1_ps(x));
        return (Vec)_mm512_dpbf16_ps((__m512)sum, pair, (__m512bh)w);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
        return (Vec)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)w, (bfloat16x8_t)vdupq_n_u32(bits));
#endif
    }
}

/// 4 bytes of an input row, whatever its element type. Rows of bf16 may be aligned to 2 bytes only.
typedef float Word __attribute__((aligned(2), may_alias));

// Processors without a dot product of 4 int8 values, but with one of int16 pairs.
#if defined(__wasm_simd128__) || \
    (defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__))
#define INT8_AS_INT16_PAIRS 1
typedef int16_t VecInt16 __attribute__((vector_size(LANES * 4)));
typedef uint16_t VecUint16 __attribute__((vector_size(LANES * 4)));

// widen_int8: 2 LANES int8 values to int16. broadcast_word: 4 bytes of a row in every lane.
// dot_pairs: sums of products of adjacent int16 pairs, in int32.
#ifdef __wasm_simd128__
static inline VecInt16 widen_int8(const float* bytes) {
    return (VecInt16)wasm_i16x8_load8x8(bytes);
}
static inline VecInt16 broadcast_word(const Word* word) {
    return (VecInt16)wasm_v128_load32_splat(word);
}
static inline VecInt dot_pairs(VecInt16 a, VecInt16 b) {
    return (VecInt)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b);
}
#elif defined(__AVX512BW__)
static inline VecInt16 widen_int8(const float* bytes) {
    return (VecInt16)_mm512_cvtepi8_epi16(_mm256_loadu_si256((__m256i*)bytes));
}
static inline VecInt16 broadcast_word(const Word* word) {
    return (VecInt16)_mm512_castps_si512(_mm512_set1_ps(*word));
}
static inline VecInt dot_pairs(VecInt16 a, VecInt16 b) {
    return (VecInt)_mm512_madd_epi16((__m512i)a, (__m512i)b);
}
#else
static inline VecInt16 widen_int8(const float* bytes) {
    return (VecInt16)_mm256_cvtepi8_epi16(_mm_loadu_si128((__m128i*)bytes));
}
static inline VecInt16 broadcast_word(const Word* word) {
    return (VecInt16)_mm256_castps_si256(_mm256_set1_ps(*word));
}
static inline VecInt dot_pairs(VecInt16 a, VecInt16 b) {
    return (VecInt)_mm256_madd_epi16((__m256i)a, (__m256i)b);
}
#endif

/// Like `multiply_block` for int8. Within a panel's step, the first and third bytes of all rows
/// come first and the second and fourth follow (see PackedMatrix::index): a mask and a shift bring
/// the bytes of x into the same order.
template <int R, int P>
static inline void multiply_block_int8(const Word* x, Index row_stride, Index word_stride,
                                       const float* panels, Index panel_stride, Index words,
                                       VecInt (&sums)[R][P]) {
    for (Index k = 0; k < words; k++) {
        VecInt16 even[P], odd[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) {
            const float* step = panels + p * panel_stride + k * LANES;
            even[p] = widen_int8(step);
            odd[p] = widen_int8(step + LANES / 2);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const VecInt16 word = broadcast_word(x + r * row_stride + k * word_stride);
            const VecInt16 x_even = word & 255, x_odd = (VecInt16)((VecUint16)word >> 8);
#pragma GCC unroll 8
            for (int p = 0; p < P; p++)
                sums[r][p] += dot_pairs(even[p], x_even) + dot_pairs(odd[p], x_odd);
        }
    }
}
#endif

#ifndef HAS_BF16_DOT
/// The first (HIGH = 0) or second (HIGH = 1) bf16 value of each word of a panel's step, in fp32.
template <int HIGH>
static inline Vec widen_bf16(const float* step) {
    const VecUint pair = (VecUint)load(step);
    return (Vec)(HIGH ? pair & 0xffff0000u : pair << 16);
}

/// Like `multiply_block` for bf16 weights, where no instruction multiplies pairs; x is in fp32, two
/// elements per step.
template <int R, int P>
static inline void multiply_block_bf16(const Word* x, Index row_stride, const float* panels,
                                       Index panel_stride, Index words, Vec (&sums)[R][P]) {
    for (Index k = 0; k < words; k++) {
        Vec first[P], second[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) {
            first[p] = widen_bf16<0>(panels + p * panel_stride + k * LANES);
            second[p] = widen_bf16<1>(panels + p * panel_stride + k * LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const Word* pair = x + r * row_stride + 2 * k;
#pragma GCC unroll 8
            for (int p = 0; p < P; p++)
                sums[r][p] = sums[r][p] + first[p] * pair[0] + second[p] * pair[1];
        }
    }
}
#endif

/// Adds the product of R rows of x and P panels to `sums`.
///
/// All strides are in words: `row_stride` between rows of x, `word_stride` between the words of a
/// row, `panel_stride` between panels. `words` is the length of the inner dimension.
template <int DTYPE, int R, int P>
static inline void multiply_block(const Word* x, Index row_stride, Index word_stride,
                                  const float* panels, Index panel_stride, Index words,
                                  typename Accumulator<DTYPE>::type (&sums)[R][P]) {
#ifdef INT8_AS_INT16_PAIRS
    if constexpr (DTYPE == INT8)
        return multiply_block_int8<R, P>(x, row_stride, word_stride, panels, panel_stride, words,
                                         sums);
#endif
#ifndef HAS_BF16_DOT
    if constexpr (DTYPE == BF16)
        return multiply_block_bf16<R, P>(x, row_stride, panels, panel_stride, words, sums);
#endif
    for (Index k = 0; k < words; k++) {
        Vec w[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) w[p] = load(panels + p * panel_stride + k * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const float word = x[r * row_stride + k * word_stride];
#pragma GCC unroll 8
            for (int p = 0; p < P; p++) sums[r][p] = multiply_add<DTYPE>(sums[r][p], w[p], word);
        }
    }
}
