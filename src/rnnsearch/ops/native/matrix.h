// Weight matrices laid out once for many products, and their products y = x W^T + b with few rows of x: in fp32, in bf16
// pairs, or in bytes by fours. An element is summed in the same order whatever the number of rows, so that a batch never
// changes a result.
#pragma once

#include "blocks.h"

constexpr float GREATEST = 127.0f;  // magnitude of a weight or an input in int8
constexpr int32_t MIDDLE = 128;     // inputs in int8 are stored as bytes without a sign: 0 as this

// A weight in int8 is its row's scale times -127 .. 127; an input, its own row's scale times the byte less 128.
struct Matrix {
    void* panels;     // [panel][depth][LANES] of 4 bytes: the step of blocks.h
    float* bias;      // [outputs rounded up to panels]
    float* scale;     // [outputs rounded up to panels], of each row of weights; int8 alone, as the next
    int32_t* excess;  // what 128 in place of every input adds to the sum
    Index outputs;
    Index inputs;
    int32_t kind;

    Index panel_count() const { return (outputs + LANES - 1) / LANES; }
    Index each() const { return each_step(kind); }
    Index depth() const { return (inputs + each() - 1) / each(); }
    Index panel_size() const { return depth() * LANES; }
    Index width() const { return depth() + (kind == INT8); }  // of a prepared row of x: its scale stands behind it

    // Where the number for input `i` of output `row` lies, among numbers of this kind.
    Index place(Index row, Index i) const {
        const Index step = ((row / LANES) * depth() + i / each()) * LANES * each(), lane = row % LANES, part = i % each();
#ifdef BYTES_AS_PAIRS
        if (kind == INT8) return step + part % 2 * 2 * LANES + 2 * lane + part / 2;  // see add_bytes
#endif
        return step + lane * each() + part;
    }
};

#ifdef __AVX512F__
// to[l][k] = from[k][l], 16 by 16 numbers of 4 bytes; `by_k` bytes from one k to the next.
static inline void transpose(const void* from, Index by_k, void* to) {
    __m512i a[16], b[16];
    for (int k = 0; k < 16; k++) a[k] = _mm512_loadu_si512((const char*)from + k * by_k);
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
    // a[4 q + i] holds of lines i, 4 + i, 8 + i and 12 + i the numbers 4 q to 4 q + 3.
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i low = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88), high = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
        const __m512i low_2 = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        const __m512i high_2 = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
        float* line = (float*)to + i * 16;
        _mm512_storeu_si512(line, _mm512_shuffle_i32x4(low, low_2, 0x88));
        _mm512_storeu_si512(line + 4 * 16, _mm512_shuffle_i32x4(high, high_2, 0x88));
        _mm512_storeu_si512(line + 8 * 16, _mm512_shuffle_i32x4(low, low_2, 0xdd));
        _mm512_storeu_si512(line + 12 * 16, _mm512_shuffle_i32x4(high, high_2, 0xdd));
    }
}
#endif

// A step of LANES lines which lie side by side, in G rows of numbers `by_k` apart.
template <class T>
static inline void store_step(const T* from, Index, T* to) {
    store((float*)to, load((const float*)from));
}
static inline void store_step(const bfloat16* from, Index by_k, bfloat16* to) {
    store((float*)to, (Vec)((Words)load(from) >> 16 | (Words)load(from + by_k)));
}
static inline void store_step(const float* from, Index, Widened* to) { store(to, load(from)); }
static inline void store_step(const bfloat16* from, Index, Widened* to) { store((float*)to, load(from)); }
static inline void store_step(const float* from, Index by_k, bfloat16* to) {
    const Words first = __builtin_convertvector(rounded(load(from)), Words);
    store((float*)to, (Vec)(first | __builtin_convertvector(rounded(load(from + by_k)), Words) << 16));
}

template <class T>
static inline void put(T x, T* to) {
    *to = x;
}
static inline void put(float x, bfloat16* to) { to->bits = rounded(all(x))[0]; }
static inline void put(bfloat16 x, Widened* to) {
    const uint32_t bits = (uint32_t)x.bits << 16;
    memcpy(to, &bits, 4);
}
static inline void put(float x, Widened* to) {
    bfloat16 narrow;
    put(x, &narrow);
    put(narrow, to);
}

template <class S, class T>
constexpr bool SAME = false;
template <class T>
constexpr bool SAME<T, T> = true;

// Lays LINES lines of `depth` numbers side by side, a step's worth of each after the other; missing ones are 0.
// Number k of line l is at from[k * by_k + l * by_line], in T or a type that becomes it.
template <class T, Index LINES, class S>
static void lay(const S* from, Index by_k, Index by_line, Index depth, Index lines, T* to) {
    constexpr Index G = each_step(KIND_OF<T>), SOME = 256;
    Index k = 0;
    if (lines == LINES && by_k == 1) {
        if constexpr (!SAME<S, T>) {
            T some[LINES * SOME];
            for (; k < depth; k += SOME) {
                const Index n = smaller(SOME, depth - k);
                for (Index l = 0; l < LINES; l++) copy(from + k + l * by_line, n, some + l * SOME);
                lay<T, LINES>(some, 1, SOME, n, LINES, to + k * LINES);
            }
            return;
        }
#ifdef __AVX512F__
        if constexpr (LINES == 16)
            for (; k + 16 * G <= depth; k += 16 * G, to += 16 * LINES * G) transpose(from + k, by_line * sizeof(T), to);
#endif
        for (; k + G <= depth; k += G, to += LINES * G)
#pragma GCC unroll 16
            for (Index l = 0; l < LINES; l++) memcpy(to + l * G, from + k + l * by_line, G * sizeof(T));
    } else if (lines == LINES && by_line == 1) {
        for (; k + G <= depth; k += G, to += LINES * G) {
            if constexpr (LINES == LANES) store_step(from + k * by_k, by_k, to);
            else
#pragma GCC unroll 16
                for (Index l = 0; l < LINES; l++)
                    for (Index g = 0; g < G; g++) put(from[(k + g) * by_k + l], to + l * G + g);
        }
    }
    for (; k < depth; k += G, to += LINES * G)
        for (Index l = 0; l < LINES; l++)
            for (Index g = 0; g < G; g++) {
                if (l < lines && k + g < depth) put(from[(k + g) * by_k + l * by_line], to + l * G + g);
                else to[l * G + g] = T{};
            }
}

// Panels begin..end of the matrix whose element (output n, input k) is at w[n * by_n + k * by_k].
template <class T>
static void fill(const Matrix& W, const float* w, Index by_n, Index by_k, Index begin, Index end) {
    for (Index p = begin; p < end; p++)
        lay<T, LANES>(w + p * LANES * by_n, by_k, by_n, W.inputs, smaller(LANES, W.outputs - p * LANES),
                      (T*)((float*)W.panels + p * W.panel_size()));
}

// What each sum is added to: W's own bias, or numbers for each row, `by_row` apart, which may be y itself.
struct Base {
    const float* numbers;
    Index by_row;
};

// Outputs of panels begin .. end for all rows, which are in W's kind, by_x numbers of 4 bytes apart.
void product(const Matrix& W, const void* x, Index by_x, Index rows, Base base, float* y, Index by_y, Index begin,
             Index end);

// The scale by which numbers become -127 .. 127: of their greatest magnitude; NaN if one of them is NaN or infinite.
static inline float scale_of(const float* x, Index count) {
    Vec most_of = all(0), odd = all(0);
    for (Index i = 0; i < count; i += LANES) {
        const Vec v = load(x + i, count - i);
        most_of = most(most_of, most(v, -v));
        odd += v * 0.0f;
    }
    float top = 0;
    for (int k = 0; k < LANES; k++) top = greater(top, most_of[k]);
    return (top > 0 ? top / GREATEST : 1.0f) + sum(odd);
}

// One row of x in int8, its scale behind it.
static inline void prepare_bytes(const Matrix& W, const float* x, float* out) {
    const float scale = scale_of(x, W.inputs), inverse = scale == scale ? 1.0f / scale : 0.0f;
    uint8_t* bytes = (uint8_t*)out;
    Index i = 0;
#ifdef __AVX512F__
    for (; i + 16 <= W.inputs; i += 16) {
        __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse)));
        __m128i packed = _mm512_cvtepi32_epi8(_mm512_add_epi32(n, _mm512_set1_epi32(MIDDLE)));
        _mm_storeu_si128((__m128i*)(bytes + i), packed);
    }
#elif defined(__AVX2__)
    for (; i + 8 <= W.inputs; i += 8) {
        const __m256i n = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse)));
        const __m256i moved = _mm256_add_epi32(n, _mm256_set1_epi32(MIDDLE));
        const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(moved), _mm256_extracti128_si256(moved, 1));
        _mm_storel_epi64((__m128i*)(bytes + i), _mm_packus_epi16(words, words));
    }
#elif defined(__wasm_simd128__)
    auto four = [&](Index at) {
        const v128_t n = wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x + at), wasm_f32x4_splat(inverse)));
        return wasm_i32x4_add(wasm_i32x4_trunc_sat_f32x4(n), wasm_i32x4_splat(MIDDLE));
    };
    for (; i + 16 <= W.inputs; i += 16) {
        const v128_t low = wasm_i16x8_narrow_i32x4(four(i), four(i + 4));
        wasm_v128_store(bytes + i, wasm_u8x16_narrow_i16x8(low, wasm_i16x8_narrow_i32x4(four(i + 8), four(i + 12))));
    }
#endif
    for (; i < W.inputs; i++) bytes[i] = scale == scale ? (uint8_t)(lrintf(x[i] * inverse) + MIDDLE) : MIDDLE;
    for (; i < 4 * W.depth(); i++) bytes[i] = MIDDLE;
    out[W.depth()] = scale;
}

// One row of x in the products' type, `out` of W.width() numbers of 4 bytes.
static inline void prepare(const Matrix& W, const float* x, float* out) {
    if (W.kind == INT8) return prepare_bytes(W, x, out);
    if (W.kind == FP32) {
        memcpy(out, x, W.inputs * 4);
        return;
    }
    bfloat16* halves = (bfloat16*)out;
    copy(x, W.inputs, halves);
    if (W.inputs % 2) halves[W.inputs] = {};
}
