// Products of matrices of any shape and layout, x w^T. A library builds a kernel for each new shape, and a training step
// has dozens of products whose shapes change with every batch; this kernel is the same for all.
//
// Both matrices are laid out anew, so that 6 rows and 4 panels (24 sums, which stay in registers) run through them. Left
// out where vectors are shorter, and in bfloat16 where the processor has a unit for whole matrices: libraries are faster
// there.
#include "rows.h"

namespace rnnsearch {

constexpr int ROWS = 6, PANELS = 4;
constexpr Index DEPTH = 2048;        // of k in one pass: four panels stay in the second cache
constexpr Index ROWS_AT_ONCE = 252;  // whose part of x stays there, too

template <class T>
struct Matrix {
    const T* data;
    Index by_row, by_column;
    const T* at(Index row, Index column) const { return data + row * by_row + column * by_column; }
};

// Memory that a thread keeps from product to product: to get it anew costs as much as to fill it.
template <class T>
T* at_least(std::vector<T>& kept, Index size) {
    if (Index(kept.size()) < size) kept.resize(size);
    return kept.data();
}

// Some rows of x times WIDTH panels. Between passes over k the sums wait in `sums`; the last pass has none there
// (`after` is null) and writes `out`.
template <class T, class O, int WIDTH>
void block_of_pass(const T* x, const T* panels, Index panel_size, Index steps, Index rows, const float* before,
                   float* after, Index by_sum, O* out, Index by_out, Index columns) {
    constexpr Index G = TOGETHER<T>;
    Vec sums[ROWS][WIDTH];
    for (int r = 0; r < ROWS; r++)
        for (int p = 0; p < WIDTH; p++) sums[r][p] = before ? load(before + r * by_sum + p * LANES) : Vec{};
    add_block<T, ROWS, WIDTH>(x, G, ROWS * G, panels, panel_size, steps, sums);
    for (int r = 0; r < ROWS; r++)
        for (int p = 0; p < WIDTH; p++) {
            if (after) store(after + r * by_sum + p * LANES, sums[r][p]);
            else if (r < rows) store(out + r * by_out + p * LANES, sums[r][p], columns - p * LANES);
        }
}

// out [M, N] = x [M, K] w^T, w [N, K]. The order of an element's sum depends on K alone.
template <class T, class O>
void product_of(Index M, Index N, Index K, Matrix<T> x, Matrix<T> w, O* out) {
    constexpr Index G = TOGETHER<T>;
    const Index passes = (K + DEPTH - 1) / DEPTH;
    const Index deep = ((K + passes - 1) / passes + G - 1) / G * G;  // of k in each pass but the last
    const Index panels = (N + LANES - 1) / LANES, panel_size = deep * LANES, by_sum = panels * LANES;
    static thread_local std::vector<T> kept_panels;
    T* laid_w = at_least(kept_panels, passes * panels * panel_size);
#pragma omp parallel
    {
        int me = omp_get_thread_num(), all_of_us = omp_get_num_threads();
        Share mine(passes * panels, me, all_of_us), groups((M + ROWS - 1) / ROWS, me, all_of_us);
        for (Index n = mine.begin; n < mine.end; n++) {
            Index k = n / panels * deep, column = n % panels * LANES;
            lay<T, LANES>(w.at(column, k), w.by_column, w.by_row, std::min(deep, K - k),
                          std::min<Index>(LANES, N - column), laid_w + n * panel_size);
        }
#pragma omp barrier
        static thread_local std::vector<T> kept_rows;
        static thread_local std::vector<float> kept_sums;
        T* laid_x = at_least(kept_rows, ROWS_AT_ONCE * deep);
        float* sums = passes > 1 ? at_least(kept_sums, ROWS_AT_ONCE * by_sum) : nullptr;
        const Index end = std::min(groups.end * ROWS, M);
        for (Index m = groups.begin * ROWS; m < end; m += ROWS_AT_ONCE) {
            Index rows = std::min(ROWS_AT_ONCE, end - m);
            for (Index pass = 0; pass < passes; pass++) {
                const Index k = pass * deep, depth = std::min(deep, K - k), steps = (depth + G - 1) / G;
                for (Index r = 0; r < rows; r += ROWS)
                    lay<T, ROWS>(x.at(m + r, k), x.by_column, x.by_row, depth, std::min<Index>(ROWS, rows - r),
                                 laid_x + r * steps * G);
                auto all_rows = [&](auto width, Index p) {
                    for (Index r = 0; r < rows; r += ROWS) {
                        float* waiting = sums ? sums + r * by_sum + p * LANES : nullptr;
                        block_of_pass<T, O, decltype(width)::value>(
                            laid_x + r * steps * G, laid_w + (pass * panels + p) * panel_size, panel_size, steps,
                            std::min<Index>(ROWS, rows - r), pass > 0 ? waiting : nullptr,
                            pass + 1 < passes ? waiting : nullptr, by_sum, out + (m + r) * N + p * LANES, N,
                            N - p * LANES);
                    }
                };
                Index p = 0;
                for (; p + PANELS <= panels; p += PANELS) all_rows(std::integral_constant<int, PANELS>{}, p);
                for (; p < panels; p++) all_rows(std::integral_constant<int, 1>{}, p);
            }
        }
    }
}

}  // namespace rnnsearch

using namespace rnnsearch;

#define PRODUCT(NAME, T, O)                                                                                           \
    extern "C" void NAME(Index M, Index N, Index K, const T* x, Index x_row, Index x_column, const T* w, Index w_row,  \
                         Index w_column, O* out) {                                                                     \
        product_of<T, O>(M, N, K, {x, x_row, x_column}, {w, w_row, w_column}, out);                                    \
    }

#if defined(__AVX512F__)
PRODUCT(product_fp32, float, float)
#endif
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
PRODUCT(product_bf16, bfloat16, bfloat16)
PRODUCT(product_unrounded_bf16, bfloat16, float)
#endif
