// Products with packed matrices, in blocks of as many rows and panels as the registers have
// accumulators for.
#include "packed_matrix.h"

#include "amx_tiles.h"

namespace {

/// Returns the initial accumulators of one row for a panel that begins at `column`.
template <int DTYPE>
inline typename Accumulator<DTYPE>::type initial_sums(const PackedMatrix& W, const float* addend,
                                                      Index column) {
#ifdef SIGNED_INT8_INPUTS
    if constexpr (DTYPE == INT8) return VecInt{};
#else
    if constexpr (DTYPE == INT8) return -load(W.correction + column);
#endif
    else return load(addend + column, W.outputs - column);
}

/// Stores the outputs of one row and panel; int8 sums are scaled and the addend is added only here.
template <int DTYPE>
inline void store_outputs(const PackedMatrix& W, typename Accumulator<DTYPE>::type sums,
                          const Word* x, const float* addend, float* y, Index column) {
    const Index remaining = W.outputs - column;
    if constexpr (DTYPE == INT8) {
        const Vec scale = load(W.scale + column) * x[W.words()];
        store(y + column,
              __builtin_convertvector(sums, Vec) * scale + load(addend + column, remaining),
              remaining);
    } else {
        store(y + column, sums, remaining);
    }
}

/// Multiplies R rows of x by P panels, from panel p on.
template <int DTYPE, int R, int P>
inline void product_block(const PackedMatrix& W, const Word* x, Index x_stride, Addend addend,
                          float* y, Index y_stride, Index p) {
    typename Accumulator<DTYPE>::type sums[R][P];
#pragma GCC unroll 8
    for (int c = 0; c < P; c++)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            sums[r][c] =
                initial_sums<DTYPE>(W, addend.values + r * addend.row_stride, (p + c) * LANES);
    multiply_block<DTYPE, R, P>(x, x_stride, 1, (const float*)W.panels + p * W.panel_size(),
                                W.panel_size(), W.words(), sums);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < P; c++)
            store_outputs<DTYPE>(W, sums[r][c], x + r * x_stride,
                                 addend.values + r * addend.row_stride, y + r * y_stride,
                                 (p + c) * LANES);
}

/// Multiplies R rows of x by panels p .. end; few rows take more panels at once.
template <int DTYPE, int R>
void product_rows(const PackedMatrix& W, const Word* x, Index x_stride, Addend addend, float* y,
                  Index y_stride, Index p, Index end) {
    constexpr int WIDE = R <= 2 ? 8 : R <= 4 ? 4 : BLOCK_PANELS;
    if constexpr (WIDE * R <= BLOCK_ROWS * BLOCK_PANELS)
        for (; p + WIDE <= end; p += WIDE)
            product_block<DTYPE, R, WIDE>(W, x, x_stride, addend, y, y_stride, p);
    for (; p + BLOCK_PANELS <= end; p += BLOCK_PANELS)
        product_block<DTYPE, R, BLOCK_PANELS>(W, x, x_stride, addend, y, y_stride, p);
    for (; p < end; p++) product_block<DTYPE, R, 1>(W, x, x_stride, addend, y, y_stride, p);
}

/// Calls `product_rows` with R = rows, which is at most the R of the first call.
template <int DTYPE, int R>
void dispatch_rows(const PackedMatrix& W, const Word* x, Index x_stride, Addend addend, float* y,
                   Index y_stride, Index begin, Index end, Index rows) {
    if (rows == R) return product_rows<DTYPE, R>(W, x, x_stride, addend, y, y_stride, begin, end);
    if constexpr (R > 1)
        dispatch_rows<DTYPE, R - 1>(W, x, x_stride, addend, y, y_stride, begin, end, rows);
}

template <int DTYPE>
void product_in_registers(const PackedMatrix& W, const Word* x, Index x_stride, Index rows,
                          Addend addend, float* y, Index y_stride, Index begin, Index end) {
    if (rows <= BLOCK_ROWS)
        return dispatch_rows<DTYPE, BLOCK_ROWS>(W, x, x_stride, addend, y, y_stride, begin, end,
                                                rows);
    for (Index p = begin; p < end;
         p += BLOCK_PANELS) {  // panels stay in the cache while all rows pass by
        const Index stop = min(p + BLOCK_PANELS, end);
        for (Index r = 0; r < rows; r += BLOCK_ROWS)
            dispatch_rows<DTYPE, BLOCK_ROWS>(
                W, x + r * x_stride, x_stride,
                {addend.values + r * addend.row_stride, addend.row_stride}, y + r * y_stride,
                y_stride, p, stop, min(BLOCK_ROWS, rows - r));
    }
}

#ifdef HAS_AMX
/// Multiplies `rows` rows of x, at most ROW_TILES * 16, by P panels; words behind the last whole
/// tile in registers.
template <int DTYPE, int ROW_TILES, int P>
inline void amx_block(const PackedMatrix& W, const Word* x, Index x_stride, Index rows,
                      Addend addend, float* y, Index y_stride, Index p) {
    typename Accumulator<DTYPE>::type sums[ROW_TILES * TILE][P];
    const float* panels = (const float*)W.panels + p * W.panel_size();
    const Index tiles = W.words() / TILE, done = tiles * TILE;
    multiply_tiles<DTYPE, ROW_TILES, P>({x, x_stride, TILE, TILE * x_stride}, panels,
                                        W.panel_size(), tiles, nullptr, sums);
    for (Index r = 0; r < rows; r++)
        for (int c = 0; c < P; c++) {
            const Index column = (p + c) * LANES;
            const float* row_addend = addend.values + r * addend.row_stride;
            typename Accumulator<DTYPE>::type rest[1][1] = {
                {initial_sums<DTYPE>(W, row_addend, column)}};
            multiply_block<DTYPE, 1, 1>(x + r * x_stride + done, x_stride, 1,
                                        panels + c * W.panel_size() + done * LANES, 0,
                                        W.words() - done, rest);
            store_outputs<DTYPE>(W, rest[0][0] + sums[r][c], x + r * x_stride, row_addend,
                                 y + r * y_stride, column);
        }
}

template <int DTYPE, int ROW_TILES>
inline void amx_rows(const PackedMatrix& W, const Word* x, Index x_stride, Index rows,
                     Addend addend, float* y, Index y_stride, Index p, Index end) {
    constexpr int P = 4 / ROW_TILES;
    for (; p + P <= end; p += P)
        amx_block<DTYPE, ROW_TILES, P>(W, x, x_stride, rows, addend, y, y_stride, p);
    for (; p < end; p++)
        amx_block<DTYPE, ROW_TILES, 1>(W, x, x_stride, rows, addend, y, y_stride, p);
}

template <int DTYPE>
void product_in_tiles(const PackedMatrix& W, const Word* x, Index x_stride, Index rows,
                      Addend addend, float* y, Index y_stride, Index begin, Index end) {
    constexpr Index PAIR = 2 * TILE;
    const Index whole = rows / PAIR * PAIR, remaining = rows - whole;
    if (whole) {
        configure_tiles(TILE, TILE);
        for (Index p = begin; p < end; p += 2)  // panels stay in the cache while all rows pass by
            for (Index r = 0; r < whole; r += PAIR)
                amx_rows<DTYPE, 2>(W, x + r * x_stride, x_stride, PAIR,
                                   {addend.values + r * addend.row_stride, addend.row_stride},
                                   y + r * y_stride, y_stride, p, min(p + 2, end));
    }
    x += whole * x_stride;
    addend.values += whole * addend.row_stride;
    y += whole * y_stride;
    if (remaining) configure_tiles(min(remaining, TILE), max(remaining - TILE, 0));
    if (remaining > TILE)
        amx_rows<DTYPE, 2>(W, x, x_stride, remaining, addend, y, y_stride, begin, end);
    else if (remaining)
        amx_rows<DTYPE, 1>(W, x, x_stride, remaining, addend, y, y_stride, begin, end);
    release_tiles();
}
#endif

#ifndef HAS_BF16_DOT
/// bf16 products without a bf16 dot instruction: x is widened to fp32 first and, if there are many
/// rows, so are the weights, some panels at a time.
void product_widened(const PackedMatrix& W, const Word* x, Index x_stride, Index rows,
                     Addend addend, float* y, Index y_stride, Index begin, Index end) {
    const Index width = 2 * W.words();
    Buffer<float> wide(rows * width);
    for (Index r = 0; r < rows; r++)
        convert((const bfloat16*)(x + r * x_stride), width, &wide[r * width]);
    if (rows <= BLOCK_ROWS)
        return product_in_registers<BF16>(W, wide.data, width, rows, addend, y, y_stride, begin,
                                          end);
    Buffer<float> panels(BLOCK_PANELS * width * LANES);
    for (Index p = begin; p < end; p += BLOCK_PANELS) {
        const Index count = min(BLOCK_PANELS, end - p), column = p * LANES;
        const float* steps = (const float*)W.panels + p * W.panel_size();
        for (Index k = 0; k < count * W.words(); k++) {
            store(&panels[2 * k * LANES], widen_bf16<0>(steps + k * LANES));
            store(&panels[(2 * k + 1) * LANES], widen_bf16<1>(steps + k * LANES));
        }
        const PackedMatrix group = {panels.data,        nullptr, nullptr, nullptr,
                                    W.outputs - column, width,   FP32};
        product_in_registers<FP32>(group, wide.data, width, rows,
                                   {addend.values + column, addend.row_stride}, y + column,
                                   y_stride, 0, count);
    }
}
#endif

}  // namespace

void product(const PackedMatrix& W, const void* x, Index x_stride, Index rows, Addend addend,
             float* y, Index y_stride, Index begin, Index end) {
    if (rows == 0) return;
    const Word* words = (const Word*)x;
#ifdef HAS_AMX
    if (W.dtype == BF16)
        return product_in_tiles<BF16>(W, words, x_stride, rows, addend, y, y_stride, begin, end);
    if (W.dtype == INT8)
        return product_in_tiles<INT8>(W, words, x_stride, rows, addend, y, y_stride, begin, end);
#elif !defined(HAS_BF16_DOT)
    if (W.dtype == BF16)
        return product_widened(W, words, x_stride, rows, addend, y, y_stride, begin, end);
#endif
    if (W.dtype == BF16)
        product_in_registers<BF16>(W, words, x_stride, rows, addend, y, y_stride, begin, end);
    else if (W.dtype == INT8)
        product_in_registers<INT8>(W, words, x_stride, rows, addend, y, y_stride, begin, end);
    else product_in_registers<FP32>(W, words, x_stride, rows, addend, y, y_stride, begin, end);
}
