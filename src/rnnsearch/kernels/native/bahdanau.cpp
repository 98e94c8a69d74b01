// The whole recurrence of RNNsearch's decoder and its backward pass: the native twin of `fused/bahdanau.py`, with the
// letters of Bahdanau et al. (2015), appendix A. As in `gru_sequence.cpp`, a thread takes its sentences through all
// positions, and reads only their real source positions.
#include "gru.h"

namespace rnnsearch {

struct Sizes {
    Index B, I, J, D, A, H;
};

// The real positions of one sentence.
inline std::vector<Index> real_positions(const uint8_t* mask, Index J) {
    std::vector<Index> real;
    for (Index j = 0; j < J; j++)
        if (mask[j]) real.push_back(j);
    return real;
}

template <class T>
inline float dot(const T* a, const float* b, Index n) {
    Vec s = {};
    for (Index k = 0; k < n; k += LANES) s += load(a + k, n - k) * load(b + k, n - k);
    return sum(s);
}

// e_j = v^T tanh(q + k_j), alpha = softmax(e), c = sum_j alpha_j h_j, for one sentence and one query.
template <class T>
void attend(const Sizes& n, const std::vector<Index>& real, const T* keys, const T* h, const float* v, const float* q,
            float* alpha, T* context, float* wide) {
    float most = -1e30f, total = 0;
    for (Index j : real) {
        Vec e = {};
        for (Index a = 0; a < n.A; a += LANES) {
            Index m = n.A - a;
            e += load(v + a, m) * hyperbolic_tangent(load(keys + j * n.A + a, m) + load(q + a, m));
        }
        alpha[j] = sum(e);
        most = std::max(most, alpha[j]);
    }
    for (Index j : real) {
        alpha[j] = exponential(all(alpha[j] - most))[0];
        total += alpha[j];
    }
    std::fill(wide, wide + n.H, 0.0f);
    for (Index j : real) {
        alpha[j] /= total;
        for (Index k = 0; k < n.H; k += LANES) {
            Index m = n.H - k;
            store(wide + k, load(wide + k, m) + alpha[j] * load(h + j * n.H + k, m), m);
        }
    }
    for (Index k = 0; k < n.H; k += LANES) store(context + k, load(wide + k, n.H - k), n.H - k);
}

// x: [B, I, 3 D], the previous words' share of the gates. fed_back: [A + 2 D, D], W_a above U_z and U_r. C: [3 D, H].
// Out: s [B, I, D] fp32, s_{i-1} of each position; before, reset: it, and r times it, in the products' type.
template <class T>
void bahdanau_forward(Sizes n, const T* x, const float* s_0, const T* h, const T* keys, const uint8_t* mask,
                      const T* fed_back, const float* v, const T* C, const T* U, float* s, T* before, float* zr,
                      float* candidate, T* reset, T* queries, T* contexts, float* alpha) {
    const auto [B, I, J, D, A, H] = n;
    const Index F = A + 2 * D;
    Packed<T> from_state(D, F), from_context(H, 3 * D), matrix(D, D);
    std::fill(alpha, alpha + B * I * J, 0.0f);
#pragma omp parallel
    {
        int me = omp_get_thread_num(), all_of_us = omp_get_num_threads();
        Share a(from_state.panels, me, all_of_us), b(from_context.panels, me, all_of_us);
        Share c(matrix.panels, me, all_of_us), rows(B, me, all_of_us);
        from_state.fill(fed_back, 1, D, a.begin, a.end);
        from_context.fill(C, 1, H, b.begin, b.end);
        matrix.fill(U, 1, D, c.begin, c.end);
#pragma omp barrier
        Index M = rows.size();
        std::vector<std::vector<Index>> real;
        for (Index m = rows.begin; m < rows.end; m++) real.push_back(real_positions(mask + m * J, J));
        std::vector<float> state(s_0 + rows.begin * D, s_0 + rows.end * D), f(M * F), g(M * 3 * D), u(M * D), wide(H);
        for (Index i = 0; i < I && M; i++) {
            Index first = rows.begin * I + i;  // of the rows of [B I, .]; the next sentence's is I further
            for (Index m = 0; m < M; m++) {
                Index at = (first + m * I) * D;
                for (Index d = 0; d < D; d += LANES) {
                    Vec old = load(&state[m * D + d], D - d);
                    store(s + at + d, old, D - d);
                    store(before + at + d, old, D - d);
                }
            }
            product(before + first * D, I * D, M, from_state, f.data(), F);
            for (Index m = 0; m < M; m++) {
                Index at = first + m * I, sentence = rows.begin + m;
                for (Index k = 0; k < A; k += LANES) store(queries + at * A + k, load(&f[m * F + k], A - k), A - k);
                attend(n, real[m], keys + sentence * J * A, h + sentence * J * H, v, &f[m * F], alpha + at * J,
                       contexts + at * H, wide.data());
            }
            product(contexts + first * H, I * H, M, from_context, g.data(), 3 * D);
            for (Index m = 0; m < M; m++) {
                Index at = first + m * I;
                gates(D, x + at * 3 * D, &f[m * F + A], &g[m * 3 * D], &state[m * D], zr + at * 2 * D, reset + at * D);
            }
            product(reset + first * D, I * D, M, matrix, u.data(), D);
            for (Index m = 0; m < M; m++) {
                Index at = first + m * I;
                candidate_and_state(D, x + at * 3 * D + 2 * D, &u[m * D], &g[m * 3 * D + 2 * D], &state[m * D],
                                    zr + at * 2 * D, 1.0f, candidate + at * D, &state[m * D]);
            }
        }
    }
}

// Backward of `attend` for one sentence and one query, from d_c: adds to d_keys [J, A] and d_v [A], writes d_q [A].
// d_alpha [J]: what comes from elsewhere.
template <class T>
void attend_backward(const Sizes& n, const std::vector<Index>& real, const T* keys, const T* h, const float* v,
                     const T* q, const float* alpha, const float* d_c, const float* d_alpha, float* d_energy,
                     float* d_keys, float* d_v, T* d_q) {
    float mean = 0;
    for (Index j : real) {
        d_energy[j] = alpha[j] * (dot(h + j * n.H, d_c, n.H) + d_alpha[j]);
        mean += d_energy[j];
    }
    for (Index j : real) d_energy[j] -= alpha[j] * mean;
    for (Index a = 0; a < n.A; a += LANES) {
        Index m = n.A - a;
        Vec query = load(q + a, m), va = load(v + a, m), to_query = {}, to_v = {};
        for (Index j : real) {
            Vec hidden = hyperbolic_tangent(load(keys + j * n.A + a, m) + query);
            to_v += d_energy[j] * hidden;
            Vec d = d_energy[j] * va * (1.0f - hidden * hidden);
            to_query += d;
            store(d_keys + j * n.A + a, load(d_keys + j * n.A + a, m) + d, m);
        }
        store(d_q + a, to_query, m);
        store(d_v + a, load(d_v + a, m) + to_v, m);
    }
}

// d_h [J, H] of one sentence, whose contexts are sums of alpha_ij h_j: sum_i alpha_ij d_c_i.
template <class T>
void annotations_backward(const Sizes& n, const uint8_t* mask, const float* alpha, const T* d_c, T* d_h) {
    for (Index j = 0; j < n.J; j++)
        for (Index k = 0; k < n.H; k += LANES) {
            Vec total = {};
            if (mask[j])
                for (Index i = 0; i < n.I; i++) total += alpha[i * n.J + j] * load(d_c + i * n.H + k, n.H - k);
            store(d_h + j * n.H + k, total, n.H - k);
        }
}

// d_s, d_contexts, d_alpha: of what forward gave, all [B, I, .] fp32. Out: d_x [B, I, 3 D], d_queries [B, I, A],
// d_c [B, I, H] in the products' type, from which the weights' gradients are formed at once, and d_h [B, J, H]; d_keys
// [B, J, A], d_v [A], d_s_0 [B, D] fp32.
template <class T>
void bahdanau_backward(Sizes n, const T* h, const T* keys, const uint8_t* mask, const T* fed_back, const float* v,
                       const T* C, const T* U, const float* s, const float* zr, const float* candidate,
                       const T* queries, const float* alpha, const float* d_s, const float* d_contexts,
                       const float* d_alpha, T* d_x, T* d_queries, T* d_c, T* d_h, float* d_keys, float* d_v,
                       float* d_s_0) {
    const auto [B, I, J, D, A, H] = n;
    const Index F = A + 2 * D;
    Packed<T> to_state(F, D), to_context(3 * D, H), matrix(D, D);
    Partial to_v(A);
    std::fill(d_keys, d_keys + B * J * A, 0.0f);
#pragma omp parallel
    {
        int me = omp_get_thread_num(), all_of_us = omp_get_num_threads();
        Share a(to_state.panels, me, all_of_us), b(to_context.panels, me, all_of_us);
        Share c(matrix.panels, me, all_of_us), rows(B, me, all_of_us);
        to_state.fill(fed_back, D, 1, a.begin, a.end);
        to_context.fill(C, H, 1, b.begin, b.end);
        matrix.fill(U, D, 1, c.begin, c.end);
#pragma omp barrier
        Index M = rows.size();
        std::vector<std::vector<Index>> real;
        for (Index m = rows.begin; m < rows.end; m++) real.push_back(real_positions(mask + m * J, J));
        std::vector<float> d_state(M * D), u(M * D), c_wide(M * H), d_energy(J);
        float* own_d_v = to_v.start(me);
        std::vector<T> f(M * F);
        for (Index i = I - 1; i >= 0 && M; i--) {
            Index first = rows.begin * I + i;
            for (Index m = 0; m < M; m++) {
                Index at = first + m * I;
                candidate_backward(D, &d_state[m * D], s + at * D, zr + at * 2 * D, candidate + at * D, 1.0f,
                                   d_x + at * 3 * D + 2 * D, d_x + at * 3 * D);
            }
            product(d_x + first * 3 * D + 2 * D, I * 3 * D, M, matrix, u.data(), D);
            for (Index m = 0; m < M; m++) {
                Index at = first + m * I;
                reset_backward(D, &u[m * D], s + at * D, zr + at * 2 * D, 1.0f, d_x + at * 3 * D + D, &d_state[m * D]);
                std::memcpy(&f[m * F + A], d_x + at * 3 * D, 2 * D * sizeof(T));
            }
            product(d_x + first * 3 * D, I * 3 * D, M, to_context, c_wide.data(), H);
            for (Index m = 0; m < M; m++) {
                Index at = first + m * I, sentence = rows.begin + m;
                float* total = &c_wide[m * H];
                for (Index k = 0; k < H; k += LANES) {
                    Vec d = load(total + k, H - k) + load(d_contexts + at * H + k, H - k);
                    store(total + k, d, H - k);
                    store(d_c + at * H + k, d, H - k);
                }
                attend_backward(n, real[m], keys + sentence * J * A, h + sentence * J * H, v, queries + at * A,
                                alpha + at * J, total, d_alpha + at * J, d_energy.data(), d_keys + sentence * J * A,
                                own_d_v, d_queries + at * A);
                std::memcpy(&f[m * F], d_queries + at * A, A * sizeof(T));
            }
            product(f.data(), F, M, to_state, u.data(), D);
            for (Index m = 0; m < M; m++) {
                Index at = (first + m * I) * D;
                for (Index d = 0; d < D; d += LANES) {
                    Index k = D - d;
                    Vec total = load(&d_state[m * D + d], k) + load(&u[m * D + d], k) + load(d_s + at + d, k);
                    store(&d_state[m * D + d], total, k);
                }
            }
        }
        std::copy(d_state.begin(), d_state.end(), d_s_0 + rows.begin * D);
        for (Index b = rows.begin; b < rows.end; b++)
            annotations_backward(n, mask + b * J, alpha + b * I * J, d_c + b * I * H, d_h + b * J * H);
    }
    std::fill(d_v, d_v + A, 0.0f);
    to_v.add_to(d_v);
}

}  // namespace rnnsearch

using namespace rnnsearch;

#define BAHDANAU(NAME, T)                                                                                             \
    extern "C" void bahdanau_forward_##NAME(                                                                           \
        Index B, Index I, Index J, Index D, Index A, Index H, const T* x, const float* s_0, const T* h, const T* keys, \
        const uint8_t* mask, const T* fed_back, const float* v, const T* C, const T* U, float* s, T* before,           \
        float* zr, float* candidate, T* reset, T* queries, T* contexts, float* alpha) {                                \
        bahdanau_forward<T>({B, I, J, D, A, H}, x, s_0, h, keys, mask, fed_back, v, C, U, s, before, zr, candidate,    \
                            reset, queries, contexts, alpha);                                                          \
    }                                                                                                                 \
    extern "C" void bahdanau_backward_##NAME(                                                                          \
        Index B, Index I, Index J, Index D, Index A, Index H, const T* h, const T* keys, const uint8_t* mask,          \
        const T* fed_back, const float* v, const T* C, const T* U, const float* s, const float* zr,                    \
        const float* candidate, const T* queries, const float* alpha, const float* d_s, const float* d_contexts,       \
        const float* d_alpha, T* d_x, T* d_queries, T* d_c, T* d_h, float* d_keys, float* d_v, float* d_s_0) {         \
        bahdanau_backward<T>({B, I, J, D, A, H}, h, keys, mask, fed_back, v, C, U, s, zr, candidate, queries, alpha,   \
                             d_s, d_contexts, d_alpha, d_x, d_queries, d_c, d_h, d_keys, d_v, d_s_0);                  \
    }

BAHDANAU(fp32, float)
#if defined(__AVX512BF16__)
BAHDANAU(bf16, bfloat16)
#endif
