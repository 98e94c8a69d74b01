// The whole sequence of Bahdanau et al.'s GRU and its backward pass: the native twin of `fused/gru_sequence.py`.
//
// Sentences do not meet in a recurrence, so each thread takes some of them through all positions: one hand-over of
// work a call, none a position.
#include "gru.h"

namespace rnnsearch {

// [B, J, .] tensors are contiguous. h: [B, J, D] fp32, the state after each position; before, reset: [B, J, D] in the
// products' type, the state before it and r times it.
template <class T>
void gru_forward(Index B, Index J, Index D, bool backward, const T* x, const uint8_t* mask, const float* start,
                 const T* U_gates, const T* U, float* h, T* before, float* zr, float* candidate, T* reset) {
    Packed<T> gates_matrix(D, 2 * D), matrix(D, D);
#pragma omp parallel
    {
        int me = omp_get_thread_num(), all_of_us = omp_get_num_threads();
        Share a(gates_matrix.panels, me, all_of_us), b(matrix.panels, me, all_of_us), rows(B, me, all_of_us);
        gates_matrix.fill(U_gates, 1, D, a.begin, a.end);
        matrix.fill(U, 1, D, b.begin, b.end);
#pragma omp barrier
        Index M = rows.size(), row = J * D;
        std::vector<float> state(start + rows.begin * D, start + rows.end * D), from_h(M * 2 * D), from_reset(M * D);
        for (Index t = 0; t < J && M; t++) {
            Index j = backward ? J - 1 - t : t;
            for (Index m = 0; m < M; m++)
                for (Index d = 0; d < D; d += LANES)
                    store(before + (rows.begin + m) * row + j * D + d, load(&state[m * D + d], D - d), D - d);
            Index first = rows.begin * row + j * D;
            product(before + first, row, M, gates_matrix, from_h.data(), 2 * D);
            for (Index m = 0; m < M; m++) {
                Index at = first + m * row;
                gates(D, x + 3 * at, &from_h[m * 2 * D], nullptr, &state[m * D], zr + 2 * at, reset + at);
            }
            product(reset + first, row, M, matrix, from_reset.data(), D);
            for (Index m = 0; m < M; m++) {
                Index at = first + m * row;
                float keep = mask[(rows.begin + m) * J + j];
                candidate_and_state(D, x + 3 * at + 2 * D, &from_reset[m * D], nullptr, &state[m * D], zr + 2 * at,
                                    keep, candidate + at, h + at);
                std::memcpy(&state[m * D], h + at, D * sizeof(float));
            }
        }
    }
}

// d_x: [B, J, 3 D], d of the pre-activations. d_start: [B, D].
template <class T>
void gru_backward(Index B, Index J, Index D, bool backward, const uint8_t* mask, const float* start, const T* U_gates,
                  const T* U, const float* h, const float* zr, const float* candidate, const float* d_h, T* d_x,
                  float* d_start) {
    Packed<T> gates_matrix(2 * D, D), matrix(D, D);
#pragma omp parallel
    {
        int me = omp_get_thread_num(), all_of_us = omp_get_num_threads();
        Share a(gates_matrix.panels, me, all_of_us), b(matrix.panels, me, all_of_us), rows(B, me, all_of_us);
        gates_matrix.fill(U_gates, D, 1, a.begin, a.end);
        matrix.fill(U, D, 1, b.begin, b.end);
#pragma omp barrier
        Index M = rows.size(), row = J * D;
        std::vector<float> d_state(M * D), d_reset(M * D);
        for (Index t = J - 1; t >= 0 && M; t--) {
            Index j = backward ? J - 1 - t : t, last = backward ? j + 1 : j - 1;
            auto old = [&](Index m) {
                return t == 0 ? start + (rows.begin + m) * D : h + (rows.begin + m) * row + last * D;
            };
            Index first = rows.begin * row + j * D;
            for (Index m = 0; m < M; m++) {
                Index at = first + m * row;
                float* d = &d_state[m * D];
                for (Index k = 0; k < D; k += LANES) store(d + k, load(d + k, D - k) + load(d_h + at + k, D - k), D - k);
                candidate_backward(D, d, old(m), zr + 2 * at, candidate + at, float(mask[(rows.begin + m) * J + j]),
                                   d_x + 3 * at + 2 * D, d_x + 3 * at);
            }
            product(d_x + 3 * first + 2 * D, 3 * row, M, matrix, d_reset.data(), D);
            for (Index m = 0; m < M; m++) {
                Index at = first + m * row;
                reset_backward(D, &d_reset[m * D], old(m), zr + 2 * at, float(mask[(rows.begin + m) * J + j]),
                               d_x + 3 * at + D, &d_state[m * D]);
            }
            product(d_x + 3 * first, 3 * row, M, gates_matrix, d_reset.data(), D);
            for (Index k = 0; k < M * D; k += LANES) {
                Index n = M * D - k;
                store(&d_state[k], load(&d_state[k], n) + load(&d_reset[k], n), n);
            }
        }
        std::copy(d_state.begin(), d_state.end(), d_start + rows.begin * D);
    }
}

}  // namespace rnnsearch

using namespace rnnsearch;

#define GRU(NAME, T)                                                                                                  \
    extern "C" void gru_forward_##NAME(Index B, Index J, Index D, Index backward, const T* x, const uint8_t* mask,       \
                                       const float* start, const T* U_gates, const T* U, float* h, T* before,          \
                                       float* zr, float* candidate, T* reset) {                                        \
        gru_forward<T>(B, J, D, backward, x, mask, start, U_gates, U, h, before, zr, candidate, reset);                \
    }                                                                                                                 \
    extern "C" void gru_backward_##NAME(Index B, Index J, Index D, Index backward, const uint8_t* mask,                  \
                                        const float* start, const T* U_gates, const T* U, const float* h,              \
                                        const float* zr, const float* candidate, const float* d_h, T* d_x,             \
                                        float* d_start) {                                                              \
        gru_backward<T>(B, J, D, backward, mask, start, U_gates, U, h, zr, candidate, d_h, d_x, d_start);              \
    }

GRU(fp32, float)
#if defined(__AVX512BF16__)
GRU(bf16, bfloat16)
#endif
