// Sixteen floats at a time, two storage types (fp32 and bfloat16), and the products of small matrices.
//
// Everything is written with the compiler's vector extensions, so one text serves AVX2, AVX-512 and NEON; only the
// bfloat16 product needs an instruction of its own, and is left out where the processor has none.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace rnnsearch {

using Index = int64_t;
constexpr Index LANES = 16;

typedef float floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(32), aligned(2), may_alias));

struct bfloat16 {
    uint16_t bits;
};

inline floats all(float x) { return floats{} + x; }

// Loads and stores: `n` lanes where fewer than 16 are left, the others 0 (load) or untouched (store).

inline floats load(const float* p) { return *reinterpret_cast<const floats*>(p); }

inline floats load(const bfloat16* p) {
    words wide = __builtin_convertvector(*reinterpret_cast<const halves*>(p), words) << 16;
    return reinterpret_cast<floats&>(wide);
}

inline halves rounded(floats x) {  // to nearest, ties to even
#if defined(__AVX512BF16__)
    __m256bh narrow = _mm512_cvtneps_pbh(reinterpret_cast<__m512&>(x));
    return reinterpret_cast<halves&>(narrow);
#else
    words bits = reinterpret_cast<words&>(x);
    return __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, halves);
#endif
}

inline void store(float* p, floats x) { *reinterpret_cast<floats*>(p) = x; }
inline void store(bfloat16* p, floats x) { *reinterpret_cast<halves*>(p) = rounded(x); }

template <class T>
inline floats load(const T* p, Index n) {
    if (n >= LANES) return load(p);
    T few[LANES] = {};
    std::memcpy(few, p, n * sizeof(T));
    return load(few);
}

template <class T>
inline void store(T* p, floats x, Index n) {
    if (n >= LANES) return store(p, x);
    if (n <= 0) return;
    T few[LANES];
    store(few, x);
    std::memcpy(p, few, n * sizeof(T));
}

inline float sum(floats x) {
    float s = 0;
    for (int l = 0; l < LANES; l++) s += x[l];
    return s;
}

inline floats least(floats a, floats b) { return a < b ? a : b; }
inline floats greatest(floats a, floats b) { return a > b ? a : b; }

// tanh as a quotient of polynomials, to about two units in the last place of fp32 (the coefficients of Eigen's ptanh).
inline floats hyperbolic_tangent(floats x) {
    x = greatest(least(x, all(7.90531110763549805f)), all(-7.90531110763549805f));
    floats y = x * x;
    floats p = all(-2.76076847742355e-16f);
    p = p * y + 2.00018790482477e-13f;
    p = p * y + -8.60467152213735e-11f;
    p = p * y + 5.12229709037114e-08f;
    p = p * y + 1.48572235717979e-05f;
    p = p * y + 6.37261928875436e-04f;
    p = p * y + 4.89352455891786e-03f;
    floats q = all(1.19825839466702e-06f);
    q = q * y + 1.18534705686654e-04f;
    q = q * y + 2.26843463243900e-03f;
    q = q * y + 4.89352518554385e-03f;
    return x * p / q;
}

inline floats sigmoid(floats x) { return hyperbolic_tangent(x * 0.5f) * 0.5f + 0.5f; }

// e^x by 2^n times a polynomial of the rest (Cephes' expf).
inline floats exponential(floats x) {
    x = greatest(least(x, all(88.0f)), all(-87.0f));
    floats scaled = x * 1.44269504088896341f;
    ints n = __builtin_convertvector(scaled + (scaled < 0 ? all(-0.5f) : all(0.5f)), ints);
    floats whole = __builtin_convertvector(n, floats);
    floats rest = x - whole * 0.693359375f - whole * -2.12194440e-4f;
    floats p = all(1.9875691500e-4f);
    p = p * rest + 1.3981999507e-3f;
    p = p * rest + 8.3334519073e-3f;
    p = p * rest + 4.1665795894e-2f;
    p = p * rest + 1.6666665459e-1f;
    p = p * rest + 5.0000001201e-1f;
    floats y = p * rest * rest + rest + 1.0f;
    ints power = (n + 127) << 23;
    return y * reinterpret_cast<floats&>(power);
}

// A weight matrix as the product wants it: panels of 16 columns, one k (fp32) or two (bfloat16) after the other.

template <class T>
constexpr Index TOGETHER = sizeof(T) == 2 ? 2 : 1;

template <class T>
struct Packed {
    Index K, N, panels, depth;
    std::vector<T> data;

    Packed(Index K, Index N)
        : K(K), N(N), panels((N + LANES - 1) / LANES), depth((K + TOGETHER<T> - 1) / TOGETHER<T>),
          data(panels * depth * TOGETHER<T> * LANES) {}

    const T* panel(Index p) const { return data.data() + p * depth * TOGETHER<T> * LANES; }

    // Panels begin..end of the matrix whose element (k, n) is at w[k * by_k + n * by_n].
    void fill(const T* w, Index by_k, Index by_n, Index begin, Index end) {
        constexpr Index G = TOGETHER<T>;
        for (Index p = begin; p < end; p++) {
            T* to = data.data() + p * depth * G * LANES;
            const T* from = w + p * LANES * by_n;
            Index columns = std::min(LANES, N - p * LANES), d = 0;
            if (columns == LANES)
                for (; d < K / G; d++, to += G * LANES) {
                    const T* at = from + d * G * by_k;
#pragma GCC unroll 16
                    for (Index l = 0; l < LANES; l++)
                        for (Index g = 0; g < G; g++) to[l * G + g] = at[g * by_k + l * by_n];
                }
            for (; d < depth; d++)
                for (Index l = 0; l < LANES; l++)
                    for (Index g = 0; g < G; g++) {
                        Index k = d * G + g;
                        *to++ = l < columns && k < K ? from[k * by_k + l * by_n] : T{};
                    }
        }
    }
};

#if defined(__AVX512BF16__)
inline floats multiply_add(floats sum, const bfloat16* a, const bfloat16* b) {
    int32_t two;
    std::memcpy(&two, a, 4);
    __m512i left = _mm512_set1_epi32(two), right = _mm512_loadu_si512(b);
    __m512 s = reinterpret_cast<__m512&>(sum);
    s = _mm512_dpbf16_ps(s, reinterpret_cast<__m512bh&>(left), reinterpret_cast<__m512bh&>(right));
    return reinterpret_cast<floats&>(s);
}
#endif
inline floats multiply_add(floats sum, const float* a, const float* b) { return sum + *a * load(b); }

template <class T, int ROWS, int PANELS>
inline void block(const T* a, Index by_row, const Packed<T>& b, Index panel, float* out, Index by_out, Index columns) {
    floats sums[ROWS][PANELS] = {};
    const T* at[PANELS];
    for (int p = 0; p < PANELS; p++) at[p] = b.panel(panel + p);
    constexpr Index G = TOGETHER<T>;
    for (Index d = 0; d < b.depth; d++)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++)
                sums[r][p] = multiply_add(sums[r][p], a + r * by_row + d * G, at[p] + d * G * LANES);
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
