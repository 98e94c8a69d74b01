// Products with matrices that are laid out: as many rows and panels at once as there are registers for their sums.
#include "matrix.h"

namespace {

// R rows of x times P panels, from panel p on. Rows of x are by_x apart, in units of 4 bytes.
template <int KIND, int R, int P>
inline void tile(const Matrix& W, const Word* x, Index by_x, Base base, float* y, Index by_y, Index p) {
    typename SumOf<KIND>::type sums[R][P];
#pragma GCC unroll 8
    for (int c = 0; c < P; c++) {
        const Index column = (p + c) * LANES;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            if constexpr (KIND == INT8) sums[r][c] = -load(W.excess + column);
            else sums[r][c] = load(base.numbers + r * base.by_row + column, W.outputs - column);
    }
    add_block<KIND, R, P>(x, by_x, 1, (const float*)W.panels + p * W.panel_size(), W.panel_size(), W.depth(), sums);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < P; c++) {
            const Index column = (p + c) * LANES, left = W.outputs - column;
            if constexpr (KIND == INT8) {
                const Vec scale = load(W.scale + column) * x[r * by_x + W.depth()];
                const Vec exact = __builtin_convertvector(sums[r][c], Vec);
                store(y + r * by_y + column, exact * scale + load(base.numbers + r * base.by_row + column, left), left);
            } else {
                store(y + r * by_y + column, sums[r][c], left);
            }
        }
}

template <int KIND, int R>
void rows_by_panels(const Matrix& W, const Word* x, Index by_x, Base base, float* y, Index by_y, Index p,
                           Index end) {
    constexpr int WIDE = R <= 2 ? 8 : R <= 4 ? 4 : PANELS;
    if constexpr (WIDE * R <= ROWS * PANELS)
        for (; p + WIDE <= end; p += WIDE) tile<KIND, R, WIDE>(W, x, by_x, base, y, by_y, p);
    for (; p + PANELS <= end; p += PANELS) tile<KIND, R, PANELS>(W, x, by_x, base, y, by_y, p);
    for (; p < end; p++) tile<KIND, R, 1>(W, x, by_x, base, y, by_y, p);
}

template <int KIND, int R>
void few_rows(const Matrix& W, const Word* x, Index by_x, Base base, float* y, Index by_y, Index begin,
                     Index end, Index rows) {
    if (rows == R) return rows_by_panels<KIND, R>(W, x, by_x, base, y, by_y, begin, end);
    if constexpr (R > 1) few_rows<KIND, R - 1>(W, x, by_x, base, y, by_y, begin, end, rows);
}

template <int KIND>
void product_of(const Matrix& W, const Word* x, Index by_x, Index rows, Base base, float* y, Index by_y,
                       Index begin, Index end) {
    if (rows <= ROWS) return few_rows<KIND, ROWS>(W, x, by_x, base, y, by_y, begin, end, rows);
    for (Index p = begin; p < end; p += PANELS) {  // panels stay in the cache while all rows pass by them
        const Index to = smaller(p + PANELS, end);
        for (Index r = 0; r < rows; r += ROWS)
            few_rows<KIND, ROWS>(W, x + r * by_x, by_x, {base.numbers + r * base.by_row, base.by_row}, y + r * by_y, by_y,
                                 p, to, smaller(ROWS, rows - r));
    }
}

}  // namespace

void product(const Matrix& W, const void* x, Index by_x, Index rows, Base base, float* y, Index by_y,
                           Index begin, Index end) {
    if (rows == 0) return;
    if (W.kind == BF16) product_of<BF16>(W, (const Word*)x, by_x, rows, base, y, by_y, begin, end);
    else if (W.kind == INT8) product_of<INT8>(W, (const Word*)x, by_x, rows, base, y, by_y, begin, end);
    else product_of<FP32>(W, (const Word*)x, by_x, rows, base, y, by_y, begin, end);
}
