// Matrix products x w^T of any shape and layout, for training.
//
// BLAS libraries compile or select a kernel for each new shape, and a training step has dozens of
// products whose shapes change with every batch; this kernel is the same for all shapes. Both
// operands are packed on the fly, so that blocks of rows and panels run through the
// register-blocked inner loop.
#include "amx_tiles.h"
#include "packed_matrix.h"
#include "thread_team.h"

namespace {

constexpr Index MAX_K_BLOCK = 2048;     // elements of k per pass: panels stay in the L2 cache
constexpr Index MAX_M_BLOCK = 256;      // rows of x per block, which stay there, too
constexpr Index BLOCKS_PER_THREAD = 4;  // that M is split into
constexpr Index MACS_PER_CYCLE = 64;    // multiply-adds, roughly

/// A strided matrix in T, or in fp32 if `is_fp32`; fp32 elements are rounded to T when they are
/// packed.
template <class T>
struct Operand {
    const void* data;
    Index row_stride, column_stride, is_fp32;

    /// Calls visit(pointer to the element), with the pointer's actual type.
    template <class F>
    void at(Index row, Index column, F visit) const {
        const Index offset = row * row_stride + column * column_stride;
        if (is_fp32) visit((const float*)data + offset);
        else visit((const T*)data + offset);
    }
};

/// A number of panels, as a type.
template <int N>
struct Width {
    static constexpr int WIDTH = N;
};

/// Where the accumulators of some rows and WIDTH panels go.
///
/// Between passes over k they are kept in `next` and read back from `previous`, row after row; the
/// last pass has no `next` and writes `out`, adding the bias if there is one. Passed by reference:
/// a copy would be written in words and read in vectors, which stalls the processor's store
/// forwarding.
template <class O>
struct BlockOutput {
    const float* previous;
    float* next;
    O* out;
    const float* bias;
    Index out_stride, rows, columns;

    template <int WIDTH>
    void write(int r, const Vec (&sums)[WIDTH]) const {
#pragma GCC unroll 8
        for (int p = 0; p < WIDTH; p++) {
            if (next) store(next + (r * WIDTH + p) * LANES, sums[p]);
            else if (r < rows) {
                const Index remaining = columns - p * LANES;
                store(out + r * out_stride + p * LANES,
                      bias ? sums[p] + load(bias + p * LANES, remaining) : sums[p], remaining);
            }
        }
    }
};

/// Inner loop in vector registers (microkernel.h): ROWS rows of x by PANELS panels, K_UNIT elements
/// of k at a time.
template <class T>
struct RegisterKernel {
    using Packed = T;
#if defined(__AVX512F__) || defined(__ARM_NEON)
    static constexpr int ROWS = 6, PANELS = 4;
#else
    static constexpr int ROWS = 4, PANELS = 3;
#endif
    static constexpr Index K_UNIT = elements_per_word(DTYPE_OF<T>);

    static void begin() {}
    static void end() {}

    template <class S>
    static void pack_x(const S* x, Index k_stride, Index row_stride, Index depth, Index rows,
                       T* to) {
        pack_rows<T, ROWS>(x, k_stride, row_stride, depth, rows, to);
    }

    template <class O, int WIDTH>
    static void multiply(const T* x, const T* panels, Index panel_stride, Index words,
                         const BlockOutput<O>& output) {
        Vec sums[ROWS][WIDTH];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int p = 0; p < WIDTH; p++)
                sums[r][p] =
                    output.previous ? load(output.previous + (r * WIDTH + p) * LANES) : Vec{};
        multiply_block<DTYPE_OF<T>, ROWS, WIDTH>((const Word*)x, 1, ROWS, (const float*)panels,
                                                 panel_stride, words, sums);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) output.write(r, sums[r]);
    }
};

/// The kernel for operands of type T.
template <class T>
struct KernelFor {
    using Type = RegisterKernel<T>;
};

#ifndef HAS_BF16_DOT
template <>
struct KernelFor<bfloat16> {
    using Type = RegisterKernel<WidenedBf16>;
};
#endif

#ifdef HAS_AMX
/// Inner loop on AMX tiles (amx_tiles.h). x is packed tile by tile: those of the upper 16 rows,
/// then those of the lower.
struct TileKernel {
    using T = bfloat16;
    using Packed = T;
    static constexpr int ROWS = 2 * TILE, PANELS = 2;
    static constexpr Index K_UNIT = 2 * TILE, TILE_WORDS = TILE * TILE;

    static void begin() { configure_tiles(TILE, TILE); }
    static void end() { release_tiles(); }

    static void pack_tile_row(const T* from, T* to) { memcpy(to, from, K_UNIT * sizeof(T)); }
    static void pack_tile_row(const float* from, T* to) { convert(from, K_UNIT, to); }

    template <class S>
    static void pack_x(const S* x, Index k_stride, Index row_stride, Index depth, Index rows,
                       T* to) {
        for (Index upper = 0; upper < ROWS; upper += TILE, x += TILE * row_stride, rows -= TILE)
            for (Index k = 0; k < depth; k += K_UNIT, to += 2 * TILE_WORDS) {
                const Index tile_rows = min(TILE, max(rows, 0)), remaining = min(K_UNIT, depth - k);
                if (k_stride == 1 && tile_rows == TILE && remaining == K_UNIT) {
                    for (Index r = 0; r < TILE; r++)
                        pack_tile_row(x + k + r * row_stride, to + r * K_UNIT);
                    continue;
                }
                T interleaved[2 * TILE_WORDS] = {};
                pack_rows<T, TILE>(x + k * k_stride, k_stride, row_stride, remaining, tile_rows,
                                   interleaved);
                transpose(interleaved, TILE * 4, to);
            }
    }

    template <class O, int WIDTH>
    static void multiply(const T* x, const T* panels, Index panel_stride, Index words,
                         const BlockOutput<O>& output) {
        typedef Vec Row[WIDTH];
        Row local[ROWS], *sums = output.next ? (Row*)output.next : local;
        multiply_tiles<BF16, 2, WIDTH>({x, TILE, TILE_WORDS, words * TILE}, (const float*)panels,
                                       panel_stride, words / TILE, (const Row*)output.previous,
                                       sums);
        // Accumulators for the next pass are already where the tiles stored them.
        for (int r = 0; r < ROWS && !output.next; r++) output.write(r, sums[r]);
    }
};

template <>
struct KernelFor<bfloat16> {
    using Type = TileKernel;
};
#endif

/// out [M, N] = x [M, K] w^T + bias [N], with w [N, K]. The order of an element's sum depends on K
/// only.
template <class T, class O>
void matmul(Index threads, Index M, Index N, Index K, Operand<T> x, Operand<T> w, const float* bias,
            O* out) {
    using Kernel = typename KernelFor<T>::Type;
    using Packed = typename Kernel::Packed;
    constexpr Index G = elements_per_word(DTYPE_OF<Packed>);
    auto round_up = [](Index depth) {
        return (depth + Kernel::K_UNIT - 1) / Kernel::K_UNIT * Kernel::K_UNIT;
    };
    const Index passes = (K + MAX_K_BLOCK - 1) / MAX_K_BLOCK;
    // Elements of k in each pass but the last.
    const Index k_block = round_up((K + passes - 1) / passes);
    const Index panels = (N + LANES - 1) / LANES, panel_size = k_block / G * LANES;
    // Groups of panels, each packed by one thread.
    const Index groups = (panels + Kernel::PANELS - 1) / Kernel::PANELS;
    const Index rows_per_task =
        (M / (BLOCKS_PER_THREAD * threads) + Kernel::ROWS) / Kernel::ROWS * Kernel::ROWS;
    const Index m_block = min(rows_per_task, MAX_M_BLOCK / Kernel::ROWS * Kernel::ROWS);
    Buffer<float> packed_w(passes * panels * panel_size);  // [pass, panel, word, LANES]
    const Index x_size = (m_block * (k_block / G) + 15) / 16 * 16;  // in whole cache lines
    const Index sums_size = passes > 1 ? m_block * panels * LANES : 0;  // between passes
    Buffer<float> x_of_threads(threads * x_size), sums_of_threads(threads * sums_size);
    parallel_region(threads, [&](Team& team) {
        team.parallel_for(passes * groups, 2 * Kernel::PANELS * panel_size, [&](Index n) {
            const Index pass = n / groups, k = pass * k_block, depth = min(k_block, K - k);
            const Index words = (depth + G - 1) / G;
            const Index end = min(panels, (n % groups + 1) * Kernel::PANELS);
            for (Index p = n % groups * Kernel::PANELS; p < end; p++) {
                float* panel = &packed_w[(pass * panels + p) * panel_size];
                w.at(p * LANES, k, [&](auto* from) {
                    pack_rows<Packed, LANES>(from, w.column_stride, w.row_stride, depth,
                                             min(LANES, N - p * LANES), (Packed*)panel);
                });
                memset(panel + words * LANES, 0,
                       (round_up(depth) / G - words) * LANES * sizeof(float));
            }
        });
        const Index blocks = (M + m_block - 1) / m_block, cycles = m_block * N * K / MACS_PER_CYCLE;
        team.parallel_for_with_thread(blocks, cycles, [&](Index block, Index thread) {
            float* packed_x = &x_of_threads[thread * x_size];
            float* sums = &sums_of_threads[thread * sums_size];
            Kernel::begin();
            const Index m = block * m_block, rows = min(m_block, M - m);
            for (Index pass = 0; pass < passes; pass++) {
                const Index k = pass * k_block, depth = min(k_block, K - k);
                const Index words = round_up(depth) / G;
                for (Index r = 0; r < rows; r += Kernel::ROWS)
                    x.at(m + r, k, [&](auto* from) {
                        Kernel::pack_x(from, x.column_stride, x.row_stride, depth,
                                       min(Kernel::ROWS, rows - r), (Packed*)&packed_x[r * words]);
                    });
                auto all_rows = [&](auto width, Index p) {  // times panels p .. p + width
                    for (Index r = 0; r < rows; r += Kernel::ROWS) {
                        float* partial =
                            passes > 1 ? &sums[(r * panels + p * Kernel::ROWS) * LANES] : nullptr;
                        Kernel::template multiply<O, decltype(width)::WIDTH>(
                            (const Packed*)&packed_x[r * words],
                            (const Packed*)&packed_w[(pass * panels + p) * panel_size], panel_size,
                            words,
                            {pass > 0 ? partial : nullptr, pass + 1 < passes ? partial : nullptr,
                             out + (m + r) * N + p * LANES, bias ? bias + p * LANES : nullptr, N,
                             min(Kernel::ROWS, rows - r), N - p * LANES});
                    }
                };
                Index p = 0;
                for (; p + Kernel::PANELS <= panels; p += Kernel::PANELS)
                    all_rows(Width<Kernel::PANELS>{}, p);
                for (; p < panels; p++) all_rows(Width<1>{}, p);
            }
            Kernel::end();
        });
    });
}

}  // namespace

// product_DTYPE: out [M, N] = x [M, K] w^T + bias; bias may be null. Operands are strided, in DTYPE
// or, if their `fp32` flag is set, in fp32. out is in DTYPE, or in fp32 (product_unrounded_bf16).
#define PRODUCT(NAME, T, O)                                                                       \
    EXPORT void NAME(Index threads, Index M, Index N, Index K, const void* x, Index x_row_stride, \
                     Index x_column_stride, Index x_fp32, const void* w, Index w_row_stride,      \
                     Index w_column_stride, Index w_fp32, const float* bias, O* out) {            \
        matmul<T, O>(threads, M, N, K, {x, x_row_stride, x_column_stride, x_fp32},                \
                     {w, w_row_stride, w_column_stride, w_fp32}, bias, out);                      \
    }

PRODUCT(product_fp32, float, float)
PRODUCT(product_bf16, bfloat16, bfloat16)
PRODUCT(product_unrounded_bf16, bfloat16, float)
