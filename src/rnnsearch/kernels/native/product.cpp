// Products of matrices of any shape and layout, x w^T. A library builds a kernel for each new shape, and a training step
// has dozens of products whose shapes change with every batch; this kernel is the same for all.
//
// Both matrices are laid out anew, so that ROWS rows and PANELS panels, whose sums stay in registers, run through them.
#include "matrix.h"
#include "team.h"

namespace {

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int X_ROWS = 6, X_PANELS = 4;
#else
constexpr int X_ROWS = 4, X_PANELS = 3;
#endif
constexpr Index DEPTH = 2048;                // of k in one pass: the panels stay in the second cache
constexpr Index ROWS_AT_ONCE = 42 * X_ROWS;  // at most, whose part of x stays there, too
constexpr Index PARTS = 4;                   // that rows are parted into for each thread

template <class T>
struct Strided {
    const T* data;
    Index by_row, by_column;
    const T* at(Index row, Index column) const { return data + row * by_row + column * by_column; }
};

template <int N>
struct Wide {
    static constexpr int WIDTH = N;
};

// Some rows of x times WIDTH panels. Between passes over k the sums wait in `sums`; the last pass has none there
// (`after` is null) and writes `out`.
template <class T, class O, int WIDTH>
void block_of_pass(const T* x, const T* panels, Index panel_size, Index steps, Index rows, const float* before,
                   float* after, Index by_sum, O* out, Index by_out, Index columns) {
    Vec sums[X_ROWS][WIDTH];
#pragma GCC unroll 8
    for (int r = 0; r < X_ROWS; r++)
#pragma GCC unroll 8
        for (int p = 0; p < WIDTH; p++) sums[r][p] = before ? load(before + r * by_sum + p * LANES) : Vec{};
    add_block<KIND_OF<T>, X_ROWS, WIDTH>((const Word*)x, 1, X_ROWS, (const float*)panels, panel_size, steps, sums);
#pragma GCC unroll 8
    for (int r = 0; r < X_ROWS; r++)
#pragma GCC unroll 8
        for (int p = 0; p < WIDTH; p++) {
            if (after) store(after + r * by_sum + p * LANES, sums[r][p]);
            else if (r < rows) store(out + r * by_out + p * LANES, sums[r][p], columns - p * LANES);
        }
}

// out [M, N] = x [M, K] w^T, w [N, K]. The order of an element's sum depends on K alone.
template <class T, class O>
void product_of(Index threads, Index M, Index N, Index K, Strided<T> x, Strided<T> w, O* out) {
    constexpr Index G = each_step(KIND_OF<T>);
    const Index passes = (K + DEPTH - 1) / DEPTH;
    const Index deep = ((K + passes - 1) / passes + G - 1) / G * G;  // of k in each pass but the last
    const Index panels = (N + LANES - 1) / LANES, panel_size = deep / G * LANES, by_sum = panels * LANES;
    const Index together = (panels + X_PANELS - 1) / X_PANELS;  // groups of panels, which are laid out by one thread
    const Index each = (M / (PARTS * threads) + X_ROWS) / X_ROWS * X_ROWS, at_once = smaller(each, ROWS_AT_ONCE);
    Buffer<float> laid_w(passes * panels * panel_size);
    in_team(threads, [&](Member& me) {
        me.share(passes * together, [&](Index n) {
            const Index pass = n / together, k = pass * deep;
            const Index end = smaller(panels, (n % together + 1) * X_PANELS);
            for (Index p = n % together * X_PANELS; p < end; p++)
                lay<T, LANES>(w.at(p * LANES, k), w.by_column, w.by_row, smaller(deep, K - k),
                              smaller(LANES, N - p * LANES), (T*)&laid_w[(pass * panels + p) * panel_size]);
        });
        Buffer<float> laid_x(at_once * (deep / G)), sums(passes > 1 ? at_once * by_sum : 0);
        me.share((M + at_once - 1) / at_once, [&](Index group) {
            const Index m = group * at_once, rows = smaller(at_once, M - m);
            for (Index pass = 0; pass < passes; pass++) {
                const Index k = pass * deep, depth = smaller(deep, K - k), steps = (depth + G - 1) / G;
                for (Index r = 0; r < rows; r += X_ROWS)
                    lay<T, X_ROWS>(x.at(m + r, k), x.by_column, x.by_row, depth, smaller(X_ROWS, rows - r),
                                   (T*)&laid_x[r * steps]);
                auto all_rows = [&](auto width, Index p) {
                    for (Index r = 0; r < rows; r += X_ROWS) {
                        float* waiting = passes > 1 ? &sums[r * by_sum + p * LANES] : nullptr;
                        block_of_pass<T, O, decltype(width)::WIDTH>(
                            (const T*)&laid_x[r * steps], (const T*)&laid_w[(pass * panels + p) * panel_size], panel_size,
                            steps, smaller(X_ROWS, rows - r), pass > 0 ? waiting : nullptr,
                            pass + 1 < passes ? waiting : nullptr, by_sum, out + (m + r) * N + p * LANES, N,
                            N - p * LANES);
                    }
                };
                Index p = 0;
                for (; p + X_PANELS <= panels; p += X_PANELS) all_rows(Wide<X_PANELS>{}, p);
                for (; p < panels; p++) all_rows(Wide<1>{}, p);
            }
        });
    });
}

}  // namespace

#define PRODUCT(NAME, T, O)                                                                                           \
    EXPORT void NAME(Index threads, Index M, Index N, Index K, const T* x, Index x_row, Index x_column,            \
                         const T* w, Index w_row, Index w_column, O* out) {                                            \
        product_of<T, O>(threads, M, N, K, {x, x_row, x_column}, {w, w_row, w_column}, out);                           \
    }

PRODUCT(product_fp32, float, float)
PRODUCT(product_bf16, bfloat16, bfloat16)
PRODUCT(product_unrounded_bf16, bfloat16, float)
