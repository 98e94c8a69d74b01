// Inner loop of products on Intel AMX tiles: 16 rows of x and 16 words of a panel at once.
//
// A panel (microkernel.h) already has the layout of a weight tile, and rows of x that of an input
// tile, so neither is repacked. As in microkernel.h, the order of summation does not depend on the
// number of rows and panels.
#pragma once

#include "microkernel.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define HAS_AMX 1

constexpr Index TILE = 16;  // rows of a tile, and words along k

/// Configures the tiles of this thread: 0 to 3 hold accumulators, 4 and 5 rows of x, 6 and 7 words
/// of panels.
///
/// Tiles 4, 0 and 2 have `upper` rows; tiles 5, 1 and 3 have `lower` rows or, if that is 0, hold
/// accumulators of further panels for the upper rows.
static inline void configure_tiles(Index upper, Index lower) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; tile++) config.row_bytes[tile] = 64;
    config.rows[0] = config.rows[2] = config.rows[4] = upper;
    config.rows[1] = config.rows[3] = config.rows[5] = lower ? lower : upper;
    config.rows[6] = config.rows[7] = TILE;
    // The compiler does not know that the instruction reads memory.
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&config);
}

/// Releases the tiles: context switches of a thread that has tiles in use are more expensive.
static inline void release_tiles() { _tile_release(); }

// Macros, since the instructions take tile numbers as literals.
#define MULTIPLY_ADD(SUM, X, W)                             \
    if constexpr (DTYPE == BF16) _tile_dpbf16ps(SUM, X, W); \
    else _tile_dpbusd(SUM, X, W)

// Loads or stores the accumulators of multiply_tiles: which tile holds which of them.
#define MOVE_SUMS(MOVE, SUMS)                                                \
    MOVE(0, &SUMS[0][0], P * 64);                                            \
    if constexpr (ROW_TILES == 2) MOVE(1, &SUMS[TILE][0], P * 64);           \
    if constexpr (P >= 2) MOVE(2, &SUMS[0][1], P * 64);                      \
    if constexpr (ROW_TILES == 2 && P == 2) MOVE(3, &SUMS[TILE][1], P * 64); \
    if constexpr (P == 4) {                                                  \
        MOVE(1, &SUMS[0][2], P * 64);                                        \
        MOVE(3, &SUMS[0][3], P * 64);                                        \
    }

/// Rows of x for `multiply_tiles`, with strides in words: between rows, between tiles along k, and
/// from the upper 16 rows to the lower 16 rows.
struct TileRows {
    const void* x;
    Index row_stride, tile_stride, lower_offset;
};

/// Computes the product of ROW_TILES * 16 rows of x and P panels over tiles * 16 words.
///
/// sums: [ROW_TILES * 16][P] vectors of accumulators; they start at `initial`, or at 0 if that is
/// null.
template <int DTYPE, int ROW_TILES, int P>
static inline void multiply_tiles(TileRows rows, const float* panels, Index panel_stride,
                                  Index tiles,
                                  const typename Accumulator<DTYPE>::type (*initial)[P],
                                  typename Accumulator<DTYPE>::type (*sums)[P]) {
    static_assert(ROW_TILES * P <= 4 && (ROW_TILES == 1 || P <= 2), "tiles 0 to 3");
    const float *upper = (const float*)rows.x, *lower = upper + rows.lower_offset;
    const Index row_stride = rows.row_stride, tile_stride = rows.tile_stride;
    __asm__ volatile("" ::: "memory");  // see configure_tiles
    if (initial) {
        MOVE_SUMS(_tile_loadd, initial)
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (Index k = 0; k < tiles;
         k++, upper += tile_stride, lower += tile_stride, panels += TILE * LANES) {
        _tile_loadd(4, upper, row_stride * 4);
        _tile_loadd(6, panels, 64);
        MULTIPLY_ADD(0, 4, 6);
        if constexpr (ROW_TILES == 2) {
            _tile_loadd(5, lower, row_stride * 4);
            MULTIPLY_ADD(1, 5, 6);
        }
        if constexpr (P >= 2) {
            _tile_loadd(7, panels + panel_stride, 64);
            MULTIPLY_ADD(2, 4, 7);
            if constexpr (ROW_TILES == 2) MULTIPLY_ADD(3, 5, 7);
        }
        if constexpr (P == 4) {
            _tile_loadd(6, panels + 2 * panel_stride, 64);
            MULTIPLY_ADD(1, 4, 6);
            _tile_loadd(7, panels + 3 * panel_stride, 64);
            MULTIPLY_ADD(3, 4, 7);
        }
    }
    MOVE_SUMS(_tile_stored, sums)
}
#undef MOVE_SUMS
#undef MULTIPLY_ADD
#endif
