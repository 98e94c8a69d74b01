// Products of matrices of any shape and layout, x w^T. A library builds a kernel for each new shape, and a training step
// has dozens of products whose shapes change with every batch; this kernel is the same for all.
//
// Both matrices are laid out anew, so that ROWS rows and PANELS panels, whose sums stay in registers, run through them.
#include "matrix.h"
#include "team.h"
#include "tiles.h"

namespace {

constexpr Index DEPTH = 2048;  // of k in one pass: the panels stay in the second cache
constexpr Index ROWS_AT_ONCE = 256;  // at most, whose part of x stays there, too
constexpr Index PARTS = 4;           // that rows are parted into for each thread

// A matrix in T or, where it is `wide`, in fp32, which is rounded to T as it is laid out.
template <class T>
struct Strided {
    const void* data;
    Index by_row, by_column, wide;

    // with(numbers): of either type, from an element on.
    template <class F>
    void from(Index row, Index column, F with) const {
        const Index at = row * by_row + column * by_column;
        if (wide) with((const float*)data + at);
        else with((const T*)data + at);
    }
};

template <int N>
struct Wide {
    static constexpr int WIDTH = N;
};

// Where the sums of some rows with WIDTH panels go. Between passes over k they wait, row after row; the last pass has no
// `after` and writes `out`, with the bias where there is one. (Told by reference: a copy is written by words and read by
// vectors, for which a processor waits until all results written before have left for memory.)
template <class O>
struct Sums {
    const float* before;
    float* after;
    O* out;
    const float* bias;
    Index by_out, rows, columns;

    template <int WIDTH>
    void end(int r, const Vec (&sums)[WIDTH]) const {
#pragma GCC unroll 8
        for (int p = 0; p < WIDTH; p++) {
            if (after) store(after + (r * WIDTH + p) * LANES, sums[p]);
            else if (r < rows) {
                const Index left = columns - p * LANES;
                store(out + r * by_out + p * LANES, bias ? sums[p] + load(bias + p * LANES, left) : sums[p], left);
            }
        }
    }
};

// The inner loop of blocks.h, of numbers laid out as T. k is taken EACH at a time, ROWS rows of x and PANELS panels.
template <class T>
struct InRegisters {
    using Laid = T;
#if defined(__AVX512F__) || defined(__ARM_NEON)
    static constexpr int ROWS = 6, PANELS = 4;
#else
    static constexpr int ROWS = 4, PANELS = 3;
#endif
    static constexpr Index EACH = each_step(KIND_OF<T>);

    static void begin() {}
    static void end() {}

    template <class S>
    static void lay_rows(const S* x, Index by_k, Index by_row, Index depth, Index rows, T* to) {
        lay<T, ROWS>(x, by_k, by_row, depth, rows, to);
    }

    template <class O, int WIDTH>
    static void multiply(const T* x, const T* panels, Index panel_size, Index steps, const Sums<O>& of) {
        Vec sums[ROWS][WIDTH];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int p = 0; p < WIDTH; p++)
                sums[r][p] = of.before ? load(of.before + (r * WIDTH + p) * LANES) : Vec{};
        add_block<KIND_OF<T>, ROWS, WIDTH>((const Word*)x, 1, ROWS, (const float*)panels, panel_size, steps, sums);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) of.end(r, sums[r]);
    }
};

template <class T>
struct Inner {
    using Type = InRegisters<T>;
};

#ifndef BF16_PAIRS
template <>
struct Inner<bfloat16> {
    using Type = InRegisters<Widened>;
};
#endif

#ifdef TILES
// That of tiles.h: tile after tile of the upper rows, then those of the lower ones.
struct InTiles {
    using T = bfloat16;
    using Laid = T;
    static constexpr int ROWS = 2 * TILE, PANELS = 2;
    static constexpr Index EACH = 2 * TILE, SIZE = TILE * TILE;  // of a tile, in units of 4 bytes

    static void begin() { shape_tiles(TILE, TILE); }
    static void end() { forget_tiles(); }

    static void line(const T* from, T* to) { memcpy(to, from, EACH * sizeof(T)); }
    static void line(const float* from, T* to) { copy(from, EACH, to); }

    template <class S>
    static void lay_rows(const S* x, Index by_k, Index by_row, Index depth, Index rows, T* to) {
        for (Index upper = 0; upper < ROWS; upper += TILE, x += TILE * by_row, rows -= TILE)
            for (Index k = 0; k < depth; k += EACH, to += 2 * SIZE) {
                const Index lines = smaller(TILE, greater(rows, 0)), left = smaller(EACH, depth - k);
                if (by_k == 1 && lines == TILE && left == EACH) {
                    for (Index l = 0; l < TILE; l++) line(x + k + l * by_row, to + l * EACH);
                    continue;
                }
                T steps[2 * SIZE] = {};
                lay<T, TILE>(x + k * by_k, by_k, by_row, left, lines, steps);
                transpose(steps, TILE * 4, to);
            }
    }

    template <class O, int WIDTH>
    static void multiply(const T* x, const T* panels, Index panel_size, Index steps, const Sums<O>& of) {
        typedef Vec Row[WIDTH];
        Row own[ROWS], *sums = of.after ? (Row*)of.after : own;
        multiply_tiles<BF16, 2, WIDTH>({x, TILE, SIZE, steps * TILE}, (const float*)panels, panel_size, steps / TILE,
                                       (const Row*)of.before, sums);
        for (int r = 0; r < ROWS && !of.after; r++) of.end(r, sums[r]);  // which wait where the tiles put them
    }
};

template <>
struct Inner<bfloat16> {
    using Type = InTiles;
};
#endif

// out [M, N] = x [M, K] w^T + bias, w [N, K]. The order of an element's sum depends on K alone.
template <class T, class O>
void product_of(Index threads, Index M, Index N, Index K, Strided<T> x, Strided<T> w, const float* bias, O* out) {
    using In = typename Inner<T>::Type;
    using Laid = typename In::Laid;
    constexpr Index G = each_step(KIND_OF<Laid>);
    auto whole = [](Index depth) { return (depth + In::EACH - 1) / In::EACH * In::EACH; };
    const Index passes = (K + DEPTH - 1) / DEPTH;
    const Index deep = whole((K + passes - 1) / passes);  // of k in each pass but the last
    const Index panels = (N + LANES - 1) / LANES, panel_size = deep / G * LANES;
    const Index together = (panels + In::PANELS - 1) / In::PANELS;  // groups of panels, which are laid out by one thread
    const Index each = (M / (PARTS * threads) + In::ROWS) / In::ROWS * In::ROWS;
    const Index at_once = smaller(each, ROWS_AT_ONCE / In::ROWS * In::ROWS);
    Buffer<float> laid_w(passes * panels * panel_size);
    in_team(threads, [&](Member& me) {
        me.share(passes * together, [&](Index n) {
            const Index pass = n / together, k = pass * deep, depth = smaller(deep, K - k), laid = (depth + G - 1) / G;
            const Index end = smaller(panels, (n % together + 1) * In::PANELS);
            for (Index p = n % together * In::PANELS; p < end; p++) {
                float* panel = &laid_w[(pass * panels + p) * panel_size];
                w.from(p * LANES, k, [&](auto* from) {
                    lay<Laid, LANES>(from, w.by_column, w.by_row, depth, smaller(LANES, N - p * LANES), (Laid*)panel);
                });
                memset(panel + laid * LANES, 0, (whole(depth) / G - laid) * LANES * sizeof(float));
            }
        });
        Buffer<float> laid_x(at_once * (deep / G)), sums(passes > 1 ? at_once * panels * LANES : 0);
        In::begin();
        me.share((M + at_once - 1) / at_once, [&](Index group) {
            const Index m = group * at_once, rows = smaller(at_once, M - m);
            for (Index pass = 0; pass < passes; pass++) {
                const Index k = pass * deep, depth = smaller(deep, K - k), steps = whole(depth) / G;
                for (Index r = 0; r < rows; r += In::ROWS)
                    x.from(m + r, k, [&](auto* from) {
                        In::lay_rows(from, x.by_column, x.by_row, depth, smaller(In::ROWS, rows - r),
                                     (Laid*)&laid_x[r * steps]);
                    });
                auto all_rows = [&](auto width, Index p) {
                    for (Index r = 0; r < rows; r += In::ROWS) {
                        float* waiting = passes > 1 ? &sums[(r * panels + p * In::ROWS) * LANES] : nullptr;
                        In::template multiply<O, decltype(width)::WIDTH>(
                            (const Laid*)&laid_x[r * steps], (const Laid*)&laid_w[(pass * panels + p) * panel_size],
                            panel_size, steps,
                            {pass > 0 ? waiting : nullptr, pass + 1 < passes ? waiting : nullptr,
                             out + (m + r) * N + p * LANES, bias ? bias + p * LANES : nullptr, N,
                             smaller(In::ROWS, rows - r), N - p * LANES});
                    }
                };
                Index p = 0;
                for (; p + In::PANELS <= panels; p += In::PANELS) all_rows(Wide<In::PANELS>{}, p);
                for (; p < panels; p++) all_rows(Wide<1>{}, p);
            }
        });
        In::end();
    });
}

}  // namespace

#define PRODUCT(NAME, T, O)                                                                                           \
    EXPORT void NAME(Index threads, Index M, Index N, Index K, const void* x, Index x_row, Index x_column,         \
                         Index x_wide, const void* w, Index w_row, Index w_column, Index w_wide, const float* bias,    \
                         O* out) {                                                                                     \
        product_of<T, O>(threads, M, N, K, {x, x_row, x_column, x_wide}, {w, w_row, w_column, w_wide}, bias, out);      \
    }

PRODUCT(product_fp32, float, float)
PRODUCT(product_bf16, bfloat16, bfloat16)
PRODUCT(product_unrounded_bf16, bfloat16, float)
