// Weight matrices packed once for many products y = x W^T + b with few rows of x, in fp32, bf16 or
// int8.
//
// The order of summation of an element does not depend on the number of rows, so batching never
// changes a result.
#pragma once

#include "microkernel.h"

constexpr float INT8_LIMIT = 127.0f;      // largest magnitude of a quantized weight or input
constexpr int32_t INT8_ZERO_POINT = 128;  // added to quantized inputs, which are unsigned bytes

/// A weight matrix [outputs, inputs] and its bias, packed into panels (microkernel.h). Mirrored by
/// a ctypes structure.
///
/// An int8 weight is -127 .. 127 times the scale of its row. An int8 input is its byte minus the
/// zero point, times the scale of its row of x.
struct PackedMatrix {
    void* panels;  // [panel][word][LANES] words
    float* bias;   // [outputs rounded up to panels]
    float* scale;  // [outputs rounded up to panels], per row of weights; int8 only, like the next
    int32_t* correction;  // the zero point's part of each sum: 128 times the sum of the weights
    Index outputs;
    Index inputs;
    int32_t dtype;

    Index panel_count() const { return (outputs + LANES - 1) / LANES; }
    Index per_word() const { return elements_per_word(dtype); }
    /// Words of a row along k.
    Index words() const { return (inputs + per_word() - 1) / per_word(); }
    /// Words of a panel.
    Index panel_size() const { return words() * LANES; }
    /// Words of a prepared row of x; in int8 its scale follows the values.
    Index row_words() const { return words() + (dtype == INT8); }

    /// Returns the position of W[row, input] in `panels`, in elements.
    Index index(Index row, Index input) const {
        const Index step = ((row / LANES) * words() + input / per_word()) * LANES * per_word();
        const Index lane = row % LANES, part = input % per_word();
#ifdef INT8_AS_INT16_PAIRS
        if (dtype == INT8)
            return step + part % 2 * 2 * LANES + 2 * lane + part / 2;  // see multiply_block_int8
#endif
        return step + lane * per_word() + part;
    }
};

#ifdef __AVX512F__
/// Transposes 16 x 16 words: to[l][k] = from[k][l], where the rows of `from` are `stride` bytes
/// apart.
static inline void transpose(const void* from, Index stride, void* to) {
    __m512i a[16], b[16];
    for (int k = 0; k < 16; k++) a[k] = _mm512_loadu_si512((const char*)from + k * stride);
#pragma GCC unroll 16
    for (int k = 0; k < 16; k += 2) {
        b[k] = _mm512_unpacklo_epi32(a[k], a[k + 1]);
        b[k + 1] = _mm512_unpackhi_epi32(a[k], a[k + 1]);
    }
#pragma GCC unroll 16
    for (int k = 0; k < 16; k += 4)
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            a[k + 2 * i] = _mm512_unpacklo_epi64(b[k + i], b[k + 2 + i]);
            a[k + 2 * i + 1] = _mm512_unpackhi_epi64(b[k + i], b[k + 2 + i]);
        }
        // a[4 q + i] now holds words 4 q .. 4 q + 3 of output rows i, 4 + i, 8 + i and 12 + i.
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i low = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
        const __m512i high = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
        const __m512i low_2 = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        const __m512i high_2 = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
        float* row = (float*)to + i * 16;
        _mm512_storeu_si512(row, _mm512_shuffle_i32x4(low, low_2, 0x88));
        _mm512_storeu_si512(row + 4 * 16, _mm512_shuffle_i32x4(high, high_2, 0x88));
        _mm512_storeu_si512(row + 8 * 16, _mm512_shuffle_i32x4(low, low_2, 0xdd));
        _mm512_storeu_si512(row + 12 * 16, _mm512_shuffle_i32x4(high, high_2, 0xdd));
    }
}
#endif

// pack_word packs one word of LANES adjacent rows of a matrix in which these are contiguous. A word
// of bf16 takes two successive k, which are k_stride elements apart.
template <class T>
static inline void pack_word(const T* from, Index, T* to) {
    store((float*)to, load((const float*)from));
}
static inline void pack_word(const bfloat16* from, Index k_stride, bfloat16* to) {
    store((float*)to, (Vec)((VecUint)load(from) >> 16 | (VecUint)load(from + k_stride)));
}
static inline void pack_word(const float* from, Index, WidenedBf16* to) { store(to, load(from)); }
static inline void pack_word(const bfloat16* from, Index, WidenedBf16* to) {
    store((float*)to, load(from));
}
static inline void pack_word(const float* from, Index k_stride, bfloat16* to) {
    const VecUint first = __builtin_convertvector(round_to_bf16(load(from)), VecUint);
    const VecUint second = __builtin_convertvector(round_to_bf16(load(from + k_stride)), VecUint);
    store((float*)to, (Vec)(first | second << 16));
}

// pack_element converts a single element.
template <class T>
static inline void pack_element(T x, T* to) {
    *to = x;
}
static inline void pack_element(float x, bfloat16* to) {
    to->bits = round_to_bf16(broadcast(x))[0];
}
static inline void pack_element(bfloat16 x, WidenedBf16* to) {
    const uint32_t bits = (uint32_t)x.bits << 16;
    memcpy(to, &bits, 4);
}
static inline void pack_element(float x, WidenedBf16* to) {
    bfloat16 narrow;
    pack_element(x, &narrow);
    pack_element(narrow, to);
}

template <class S, class T>
constexpr bool SAME = false;
template <class T>
constexpr bool SAME<T, T> = true;

/// Interleaves ROWS rows of `depth` elements, word by word, as type T.
///
/// Element k of row r is read from from[k * k_stride + r * row_stride] and converted to T. Rows
/// from `rows` on, and the rest of the last word, are filled with zeros.
template <class T, Index ROWS, class S>
static void pack_rows(const S* from, Index k_stride, Index row_stride, Index depth, Index rows,
                      T* to) {
    constexpr Index G = elements_per_word(DTYPE_OF<T>), BLOCK = 256;
    Index k = 0;
    if (rows == ROWS && k_stride == 1) {
        if constexpr (!SAME<S, T>) {
            T block[ROWS * BLOCK];
            for (; k < depth; k += BLOCK) {
                const Index n = min(BLOCK, depth - k);
                for (Index r = 0; r < ROWS; r++)
                    convert(from + k + r * row_stride, n, block + r * BLOCK);
                pack_rows<T, ROWS>(block, 1, BLOCK, n, ROWS, to + k * ROWS);
            }
            return;
        }
#ifdef __AVX512F__
        if constexpr (ROWS == 16)
            for (; k + 16 * G <= depth; k += 16 * G, to += 16 * ROWS * G)
                transpose(from + k, row_stride * sizeof(T), to);
#endif
        for (; k + G <= depth; k += G, to += ROWS * G)
#pragma GCC unroll 16
            for (Index r = 0; r < ROWS; r++)
                memcpy(to + r * G, from + k + r * row_stride, G * sizeof(T));
    } else if (rows == ROWS && row_stride == 1) {
        for (; k + G <= depth; k += G, to += ROWS * G) {
            if constexpr (ROWS == LANES) pack_word(from + k * k_stride, k_stride, to);
            else
#pragma GCC unroll 16
                for (Index r = 0; r < ROWS; r++)
                    for (Index g = 0; g < G; g++)
                        pack_element(from[(k + g) * k_stride + r], to + r * G + g);
        }
    }
    for (; k < depth; k += G, to += ROWS * G)
        for (Index r = 0; r < ROWS; r++)
            for (Index g = 0; g < G; g++) {
                if (r < rows && k + g < depth)
                    pack_element(from[(k + g) * k_stride + r * row_stride], to + r * G + g);
                else to[r * G + g] = T{};
            }
}

/// Packs panels begin .. end of W; w[n * n_stride + k * k_stride] is the weight of input k in
/// output n.
template <class T>
static void pack_panels(const PackedMatrix& W, const float* w, Index n_stride, Index k_stride,
                        Index begin, Index end) {
    for (Index p = begin; p < end; p++)
        pack_rows<T, LANES>(w + p * LANES * n_stride, k_stride, n_stride, W.inputs,
                            min(LANES, W.outputs - p * LANES),
                            (T*)((float*)W.panels + p * W.panel_size()));
}

/// What a product is added to: a bias (row_stride 0), or a row of values for each row of x, which
/// may be y itself.
struct Addend {
    const float* values;
    Index row_stride;
};

/// Computes y = x W^T + addend for all rows and the outputs of panels begin .. end.
///
/// x: [rows, inputs] prepared in W's type (see `prepare_row`), x_stride words apart. y: [rows,
/// outputs] in fp32. Thread-safe for disjoint ranges of panels.
void product(const PackedMatrix& W, const void* x, Index x_stride, Index rows, Addend addend,
             float* y, Index y_stride, Index begin, Index end);

/// Returns how many cycles of the processor a panel takes in a product with some rows, roughly: to
/// load a cache line of weights takes as long as to multiply it by six rows.
static inline Index product_cycles(const PackedMatrix& W, Index rows) {
    return W.panel_size() / 16 * (3 + rows / 2);
}

/// Returns the scale that maps values to -127 .. 127: their largest magnitude / 127, or 1 if all
/// are 0. NaN if any value is NaN or infinite.
static inline float int8_scale(const float* x, Index count) {
    Vec magnitude = broadcast(0), not_finite = broadcast(0);
    for (Index i = 0; i < count; i += LANES) {
        const Vec v = load(x + i, count - i);
        magnitude = max(magnitude, max(v, -v));
        not_finite += v * 0.0f;  // NaN for NaN and infinity
    }
    float top = 0;
    for (int k = 0; k < LANES; k++) top = max(top, magnitude[k]);
    return (top > 0 ? top / INT8_LIMIT : 1.0f) + sum(not_finite);
}

/// Quantizes a row of x to unsigned bytes, followed by its scale. A row with a scale of NaN becomes
/// zeros.
static inline void quantize_row(const PackedMatrix& W, const float* x, float* out) {
    const float scale = int8_scale(x, W.inputs), inverse = scale == scale ? 1.0f / scale : 0.0f;
    uint8_t* bytes = (uint8_t*)out;
    Index i = 0;
#ifdef __AVX512F__
    for (; i + 16 <= W.inputs; i += 16) {
        __m512i n =
            _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse)));
        __m128i packed =
            _mm512_cvtepi32_epi8(_mm512_add_epi32(n, _mm512_set1_epi32(INT8_ZERO_POINT)));
        _mm_storeu_si128((__m128i*)(bytes + i), packed);
    }
#elif defined(__AVX2__)
    for (; i + 8 <= W.inputs; i += 8) {
        const __m256i n =
            _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse)));
        const __m256i shifted = _mm256_add_epi32(n, _mm256_set1_epi32(INT8_ZERO_POINT));
        const __m128i words =
            _mm_packus_epi32(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
        _mm_storel_epi64((__m128i*)(bytes + i), _mm_packus_epi16(words, words));
    }
#elif defined(__wasm_simd128__)
    auto quantize = [&](Index at) {
        const v128_t n =
            wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x + at), wasm_f32x4_splat(inverse)));
        return wasm_i32x4_add(wasm_i32x4_trunc_sat_f32x4(n), wasm_i32x4_splat(INT8_ZERO_POINT));
    };
    for (; i + 16 <= W.inputs; i += 16) {
        const v128_t low = wasm_i16x8_narrow_i32x4(quantize(i), quantize(i + 4));
        const v128_t high = wasm_i16x8_narrow_i32x4(quantize(i + 8), quantize(i + 12));
        wasm_v128_store(bytes + i, wasm_u8x16_narrow_i16x8(low, high));
    }
#endif
    for (; i < W.inputs; i++)
        bytes[i] =
            scale == scale ? (uint8_t)(lrintf(x[i] * inverse) + INT8_ZERO_POINT) : INT8_ZERO_POINT;
    for (; i < 4 * W.words(); i++) bytes[i] = INT8_ZERO_POINT;
    out[W.words()] = scale;
}

/// Converts a row of x [inputs] to W's type, into `out` of W.row_words() words.
static inline void prepare_row(const PackedMatrix& W, const float* x, float* out) {
    if (W.dtype == INT8) return quantize_row(W, x, out);
    if (W.dtype == FP32) {
        memcpy(out, x, W.inputs * 4);
        return;
    }
    bfloat16* narrow = (bfloat16*)out;
    convert(x, W.inputs, narrow);
    if (W.inputs % 2) narrow[W.inputs] = {};
}
