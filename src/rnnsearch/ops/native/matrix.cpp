// Products with matrices that are laid out: as many rows and panels at once as there are registers for their sums.
#include "matrix.h"
#include "tiles.h"

namespace {

// What the sums of one row of x with a panel begin with; `base` are that row's numbers.
template <int KIND>
inline typename SumOf<KIND>::type first(const Matrix& W, const float* base, Index column) {
#ifdef BYTES_WITH_SIGNS
    if constexpr (KIND == INT8) return VecInt{};
#else
    if constexpr (KIND == INT8) return -load(W.excess + column);
#endif
    else return load(base + column, W.outputs - column);
}

// The outputs of these sums.
template <int KIND>
inline void finish(const Matrix& W, typename SumOf<KIND>::type sums, const Word* x, const float* base, float* y,
                   Index column) {
    const Index left = W.outputs - column;
    if constexpr (KIND == INT8) {
        const Vec scale = load(W.scale + column) * x[W.depth()];
        store(y + column, __builtin_convertvector(sums, Vec) * scale + load(base + column, left), left);
    } else {
        store(y + column, sums, left);
    }
}

// R rows of x times P panels, from panel p on. Rows of x are by_x apart, in units of 4 bytes.
template <int KIND, int R, int P>
inline void tile(const Matrix& W, const Word* x, Index by_x, Base base, float* y, Index by_y, Index p) {
    typename SumOf<KIND>::type sums[R][P];
#pragma GCC unroll 8
    for (int c = 0; c < P; c++)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) sums[r][c] = first<KIND>(W, base.numbers + r * base.by_row, (p + c) * LANES);
    add_block<KIND, R, P>(x, by_x, 1, (const float*)W.panels + p * W.panel_size(), W.panel_size(), W.depth(), sums);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < P; c++)
            finish<KIND>(W, sums[r][c], x + r * by_x, base.numbers + r * base.by_row, y + r * by_y, (p + c) * LANES);
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

#ifdef TILES
// `rows` rows of x, at most HIGH * 16, times P panels.
template <int KIND, int HIGH, int P>
inline void tiled(const Matrix& W, const Word* x, Index by_x, Index rows, Base base, float* y, Index by_y, Index p) {
    typename SumOf<KIND>::type sums[HIGH * TILE][P];
    const float* panels = (const float*)W.panels + p * W.panel_size();
    const Index tiles = W.depth() / TILE, done = tiles * TILE;
    multiply_tiles<KIND, HIGH, P>({x, by_x, TILE, TILE * by_x}, panels, W.panel_size(), tiles, nullptr, sums);
    for (Index r = 0; r < rows; r++)
        for (int c = 0; c < P; c++) {
            const Index column = (p + c) * LANES;
            const float* own = base.numbers + r * base.by_row;
            typename SumOf<KIND>::type sum[1][1] = {{first<KIND>(W, own, column)}};
            add_block<KIND, 1, 1>(x + r * by_x + done, by_x, 1, panels + c * W.panel_size() + done * LANES, 0,
                                  W.depth() - done, sum);
            finish<KIND>(W, sum[0][0] + sums[r][c], x + r * by_x, own, y + r * by_y, column);
        }
}

template <int KIND, int HIGH>
inline void tiled_rows(const Matrix& W, const Word* x, Index by_x, Index rows, Base base, float* y, Index by_y, Index p,
                       Index end) {
    constexpr int P = 4 / HIGH;
    for (; p + P <= end; p += P) tiled<KIND, HIGH, P>(W, x, by_x, rows, base, y, by_y, p);
    for (; p < end; p++) tiled<KIND, HIGH, 1>(W, x, by_x, rows, base, y, by_y, p);
}

template <int KIND>
void product_in_tiles(const Matrix& W, const Word* x, Index by_x, Index rows, Base base, float* y, Index by_y,
                      Index begin, Index end) {
    constexpr Index PAIR = 2 * TILE;
    const Index whole = rows / PAIR * PAIR, left = rows - whole;
    if (whole) {
        shape_tiles(TILE, TILE);
        for (Index p = begin; p < end; p += 2)  // panels stay in the cache while all rows pass by them
            for (Index r = 0; r < whole; r += PAIR)
                tiled_rows<KIND, 2>(W, x + r * by_x, by_x, PAIR, {base.numbers + r * base.by_row, base.by_row},
                                    y + r * by_y, by_y, p, smaller(p + 2, end));
    }
    x += whole * by_x, base.numbers += whole * base.by_row, y += whole * by_y;
    if (left) shape_tiles(smaller(left, TILE), greater(left - TILE, 0));
    if (left > TILE) tiled_rows<KIND, 2>(W, x, by_x, left, base, y, by_y, begin, end);
    else if (left) tiled_rows<KIND, 1>(W, x, by_x, left, base, y, by_y, begin, end);
    forget_tiles();
}
#endif

#ifndef BF16_PAIRS
// Of bf16 where nothing multiplies pairs: x is made fp32 first and, where many rows pass by them, some panels at a time.
void product_of_pairs(const Matrix& W, const Word* x, Index by_x, Index rows, Base base, float* y, Index by_y,
                      Index begin, Index end) {
    const Index width = 2 * W.depth();
    Buffer<float> wide(rows * width);
    for (Index r = 0; r < rows; r++) copy((const bfloat16*)(x + r * by_x), width, &wide[r * width]);
    if (rows <= ROWS) return product_of<BF16>(W, wide.data, width, rows, base, y, by_y, begin, end);
    Buffer<float> laid(PANELS * width * LANES);
    for (Index p = begin; p < end; p += PANELS) {
        const Index count = smaller(PANELS, end - p), column = p * LANES;
        const float* steps = (const float*)W.panels + p * W.panel_size();
        for (Index k = 0; k < count * W.depth(); k++) {
            store(&laid[2 * k * LANES], half<0>(steps + k * LANES));
            store(&laid[(2 * k + 1) * LANES], half<1>(steps + k * LANES));
        }
        const Matrix group = {laid.data, nullptr, nullptr, nullptr, W.outputs - column, width, FP32};
        product_of<FP32>(group, wide.data, width, rows, {base.numbers + column, base.by_row}, y + column, by_y, 0, count);
    }
}
#endif

}  // namespace

void product(const Matrix& W, const void* x, Index by_x, Index rows, Base base, float* y, Index by_y,
                           Index begin, Index end) {
    if (rows == 0) return;
#ifdef TILES
    if (W.kind == BF16) return product_in_tiles<BF16>(W, (const Word*)x, by_x, rows, base, y, by_y, begin, end);
    if (W.kind == INT8) return product_in_tiles<INT8>(W, (const Word*)x, by_x, rows, base, y, by_y, begin, end);
#elif !defined(BF16_PAIRS)
    if (W.kind == BF16) return product_of_pairs(W, (const Word*)x, by_x, rows, base, y, by_y, begin, end);
#endif
    if (W.kind == BF16) product_of<BF16>(W, (const Word*)x, by_x, rows, base, y, by_y, begin, end);
    else if (W.kind == INT8) product_of<INT8>(W, (const Word*)x, by_x, rows, base, y, by_y, begin, end);
    else product_of<FP32>(W, (const Word*)x, by_x, rows, base, y, by_y, begin, end);
}
