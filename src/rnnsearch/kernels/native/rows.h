// Rows of numbers in two storage types (fp32 and bfloat16), and products of few rows with a packed matrix, as training's
// recurrences need them: rows may be any distance apart, and products are not bound to a batch-free order of sums.
//
// Only the bfloat16 product needs an instruction of its own, and is left out where the processor has none.
#pragma once

#include <omp.h>

#include <vector>

#include "vectors.h"

namespace rnnsearch {

using Index = int64_t;

typedef uint32_t Words __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2), aligned(2)));

struct bfloat16 {
    uint16_t bits;
};

// Loads and stores: `n` lanes where fewer than 16 are left, the others 0 (load) or untouched (store).

using ::load;
using ::store;

inline Vec load(const bfloat16* p) {
    Halves narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    return (Vec)(__builtin_convertvector(narrow, Words) << 16);
}

inline Halves rounded(Vec x) {  // to nearest, ties to even
#if defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
    Words bits = (Words)x;
    return __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
#endif
}

inline void store(bfloat16* p, Vec x) {
    Halves narrow = rounded(x);
    std::memcpy(p, &narrow, sizeof narrow);
}

template <class T>
inline Vec load(const T* p, Index n) {
    if (n >= LANES) return load(p);
    T few[LANES] = {};
    std::memcpy(few, p, n * sizeof(T));
    return load(few);
}

template <class T>
inline void store(T* p, Vec x, Index n) {
    if (n >= LANES) return store(p, x);
    if (n <= 0) return;
    T few[LANES];
    store(few, x);
    std::memcpy(p, few, n * sizeof(T));
}

// How many numbers a product takes at once along the axis that it sums over.
template <class T>
constexpr Index TOGETHER = sizeof(T) == 2 ? 2 : 1;

// Lays LINES lines of `depth` numbers side by side, TOGETHER of each after the other; missing ones are 0.
// Number k of line l is at from[k * by_k + l * by_line].
template <class T, Index LINES>
void lay(const T* from, Index by_k, Index by_line, Index depth, Index lines, T* to) {
    constexpr Index G = TOGETHER<T>;
    Index k = 0;
    if (lines == LINES && by_k == 1) {
        for (; k + G <= depth; k += G, to += LINES * G)
#pragma GCC unroll 16
            for (Index l = 0; l < LINES; l++) std::memcpy(to + l * G, from + k + l * by_line, G * sizeof(T));
    } else if (lines == LINES && by_line == 1) {
        for (; k + G <= depth; k += G, to += LINES * G) {
            T part[G][LINES];
            for (Index g = 0; g < G; g++) std::memcpy(part[g], from + (k + g) * by_k, sizeof part[g]);
#pragma GCC unroll 16
            for (Index l = 0; l < LINES; l++)
                for (Index g = 0; g < G; g++) to[l * G + g] = part[g][l];
        }
    }
    for (; k < depth; k += G, to += LINES * G)
        for (Index l = 0; l < LINES; l++)
            for (Index g = 0; g < G; g++)
                to[l * G + g] = l < lines && k + g < depth ? from[(k + g) * by_k + l * by_line] : T{};
}

// A weight matrix as the product wants it: panels of LANES columns.
template <class T>
struct Packed {
    Index K, N, panels, depth;
    std::vector<T> data;

    Packed(Index K, Index N)
        : K(K), N(N), panels((N + LANES - 1) / LANES), depth((K + TOGETHER<T> - 1) / TOGETHER<T>),
          data(panels * depth * TOGETHER<T> * LANES) {}

    Index panel_size() const { return depth * TOGETHER<T> * LANES; }
    const T* panel(Index p) const { return data.data() + p * panel_size(); }

    // Panels begin..end of the matrix whose element (k, n) is at w[k * by_k + n * by_n].
    void fill(const T* w, Index by_k, Index by_n, Index begin, Index end) {
        for (Index p = begin; p < end; p++)
            lay<T, LANES>(w + p * LANES * by_n, by_k, by_n, K, std::min<Index>(LANES, N - p * LANES),
                          data.data() + p * panel_size());
    }
};

#if defined(__AVX512BF16__)
inline Vec multiply_add(Vec sum, const bfloat16* a, const bfloat16* b) {
    int32_t two;
    std::memcpy(&two, a, 4);
    __m512i left = _mm512_set1_epi32(two), right = _mm512_loadu_si512(b);
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
}
#endif
inline Vec multiply_add(Vec sum, const float* a, const float* b) { return sum + *a * load(b); }

// Adds ROWS rows of a times PANELS panels to sums. A step is TOGETHER numbers of each row and of each column.
template <class T, int ROWS, int PANELS>
inline void add_block(const T* a, Index by_row, Index by_step, const T* panels, Index panel_size, Index steps,
                      Vec (&sums)[ROWS][PANELS]) {
    for (Index d = 0; d < steps; d++)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++)
                sums[r][p] = multiply_add(sums[r][p], a + r * by_row + d * by_step,
                                          panels + p * panel_size + d * TOGETHER<T> * LANES);
}

template <class T, int ROWS, int PANELS>
inline void block(const T* a, Index by_row, const Packed<T>& b, Index panel, float* out, Index by_out, Index columns) {
    Vec sums[ROWS][PANELS] = {};
    add_block<T, ROWS, PANELS>(a, by_row, TOGETHER<T>, b.panel(panel), b.panel_size(), b.depth, sums);
    for (int r = 0; r < ROWS; r++)
        for (int p = 0; p < PANELS; p++)
            store(out + r * by_out + p * LANES, sums[r][p], columns - p * LANES);
}

template <class T, int PANELS>
inline void rows_of(const T* a, Index by_row, Index M, const Packed<T>& b, Index panel, float* out, Index by_out) {
    Index m = 0, columns = b.N - panel * LANES;
    float* to = out + panel * LANES;
    for (; m + 8 <= M; m += 8) block<T, 8, PANELS>(a + m * by_row, by_row, b, panel, to + m * by_out, by_out, columns);
    if (m + 4 <= M) {
        block<T, 4, PANELS>(a + m * by_row, by_row, b, panel, to + m * by_out, by_out, columns);
        m += 4;
    }
    for (; m < M; m++) block<T, 1, PANELS>(a + m * by_row, by_row, b, panel, to + m * by_out, by_out, columns);
}

// out [M, N] = a [M, K] b. Rows of `a` are `by_row` apart; in bfloat16 K must be even.
template <class T>
void product(const T* a, Index by_row, Index M, const Packed<T>& b, float* out, Index by_out) {
    Index p = 0;
    for (; p + 3 <= b.panels; p += 3) rows_of<T, 3>(a, by_row, M, b, p, out, by_out);
    for (; p < b.panels; p++) rows_of<T, 1>(a, by_row, M, b, p, out, by_out);
}

// Part `number` of `count` equal parts of n things.
struct Share {
    Index begin, end;
    Share(Index n, Index number, Index count) : begin(n * number / count), end(n * (number + 1) / count) {}
    Index size() const { return end - begin; }
};

// A sum over rows that each thread begins for its own: added up in the threads' order, so that the same batch gives the
// same bits whichever thread ends first.
class Partial {
    std::vector<std::vector<float>> parts;
    Index size;

  public:
    explicit Partial(Index size) : parts(omp_get_max_threads()), size(size) {}
    float* start(int thread) {
        parts[thread].assign(size, 0.0f);
        return parts[thread].data();
    }
    void add_to(float* total) const {
        for (const auto& part : parts)
            for (Index k = 0; k < Index(part.size()); k++) total[k] += part[k];
    }
};

}  // namespace rnnsearch
