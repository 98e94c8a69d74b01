// The inner loop of products on AMX tiles: 16 rows of x, 16 steps of a panel at once. A panel of blocks.h lies as a tile of
// weights is read, and rows as a tile of x, so nothing is laid out anew for them.
//
// An element's sum is formed in the same order whatever the number of rows and panels, as in blocks.h.
#pragma once

#include "blocks.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define TILES 1

constexpr Index TILE = 16;  // rows, and steps

// What the tiles are from here on: 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 steps of panels. Tiles 4, 0 and 2 have
// `upper` rows; 5, 1 and 3 have `lower` or, where that is 0, sums of more panels for the upper ones.
static inline void shape_tiles(Index upper, Index lower) {
    struct alignas(64) {
        uint8_t palette = 1, start = 0, none[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
    } shapes;
    for (int tile = 0; tile < 8; tile++) shapes.bytes[tile] = 64;
    shapes.rows[0] = shapes.rows[2] = shapes.rows[4] = upper;
    shapes.rows[1] = shapes.rows[3] = shapes.rows[5] = lower ? lower : upper;
    shapes.rows[6] = shapes.rows[7] = TILE;
    __asm__ volatile("" ::: "memory");  // compilers do not know that tiles read memory
    _tile_loadconfig(&shapes);
}

// The tiles are given back: a thread that has some in use is dearer to switch.
static inline void forget_tiles() { _tile_release(); }

// The instructions take numbers of tiles as text, hence no function.
#define MULTIPLY_ADD(SUM, X, W)                              \
    if constexpr (KIND == BF16) _tile_dpbf16ps(SUM, X, W); \
    else _tile_dpbusd(SUM, X, W)

// Loads or stores the sums of multiply_tiles: which tile holds which.
#define MOVE_SUMS(MOVE, SUMS)                                                        \
    MOVE(0, &SUMS[0][0], P * 64);                                                    \
    if constexpr (HIGH == 2) MOVE(1, &SUMS[TILE][0], P * 64);                        \
    if constexpr (P >= 2) MOVE(2, &SUMS[0][1], P * 64);                              \
    if constexpr (HIGH == 2 && P == 2) MOVE(3, &SUMS[TILE][1], P * 64);              \
    if constexpr (P == 4) {                                                          \
        MOVE(1, &SUMS[0][2], P * 64);                                                \
        MOVE(3, &SUMS[0][3], P * 64);                                                \
    }

// Where rows of x lie, in units of 4 bytes: each by_row from the one before, 16 steps by_tile from those before, and the
// lower 16 rows `lower` from the upper ones.
struct TiledRows {
    const void* x;
    Index by_row, by_tile, lower;
};

// sums[row][panel] = HIGH times 16 rows of x times P panels, of `tiles` times 16 steps, and the sums `before`, where given.
template <int KIND, int HIGH, int P>
static inline void multiply_tiles(TiledRows rows, const float* panels, Index panel_size, Index tiles,
                                  const typename SumOf<KIND>::type (*before)[P], typename SumOf<KIND>::type (*sums)[P]) {
    static_assert(HIGH * P <= 4 && (HIGH == 1 || P <= 2), "tiles 0 to 3");
    const float *upper = (const float*)rows.x, *lower = upper + rows.lower;
    const Index by_row = rows.by_row, by_tile = rows.by_tile;
    __asm__ volatile("" ::: "memory");  // see shape_tiles
    if (before) {
        MOVE_SUMS(_tile_loadd, before)
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (Index k = 0; k < tiles; k++, upper += by_tile, lower += by_tile, panels += TILE * LANES) {
        _tile_loadd(4, upper, by_row * 4);
        _tile_loadd(6, panels, 64);
        MULTIPLY_ADD(0, 4, 6);
        if constexpr (HIGH == 2) {
            _tile_loadd(5, lower, by_row * 4);
            MULTIPLY_ADD(1, 5, 6);
        }
        if constexpr (P >= 2) {
            _tile_loadd(7, panels + panel_size, 64);
            MULTIPLY_ADD(2, 4, 7);
            if constexpr (HIGH == 2) MULTIPLY_ADD(3, 5, 7);
        }
        if constexpr (P == 4) {
            _tile_loadd(6, panels + 2 * panel_size, 64);
            MULTIPLY_ADD(1, 4, 6);
            _tile_loadd(7, panels + 3 * panel_size, 64);
            MULTIPLY_ADD(3, 4, 7);
        }
    }
    MOVE_SUMS(_tile_stored, sums)
}
#undef MOVE_SUMS
#undef MULTIPLY_ADD
#endif
