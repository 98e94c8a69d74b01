// Cross-entropy over the vocabulary and its gradient, row by row, in place on the logits: the fast
// implementation of one chunk of ops/loss.py.
#include "thread_team.h"
#include "vectors.h"

namespace {

/// Chunks of rows. Each has a sum for the bias gradient, and these are added in order, so that
/// results do not depend on the number of threads.
constexpr Index CHUNKS = 16;

/// Computes the loss of M rows of logits and, if `gradient`, overwrites them with its gradient.
///
/// logits: [M, V], without the bias; d/dlogits = softmax - (1 - eps) onehot - eps / V. bias: [V].
/// target: [M], -1 in rows without a loss, whose gradient is 0. nll: [M], negative log-likelihood.
/// smoothed: [M], loss with label smoothing eps. d_bias: [V], accumulated into.
template <class T>
void softmax_loss(Index threads, Index M, Index V, T* logits, const float* bias,
                  const int64_t* target, float eps, bool gradient, float* nll, float* smoothed,
                  float* d_bias) {
    Buffer<float> chunk_d_bias;  // [CHUNKS, V]
    if (gradient) chunk_d_bias.zeros(CHUNKS * V);
    const Index row_size = V + LANES, cycles = M * V * 4 / CHUNKS;
    Buffer<float> thread_rows(threads * row_size);
    parallel_region(threads, [&](Team& team) {
        team.parallel_for_with_thread(CHUNKS, cycles, [&](Index chunk, Index thread) {
            float* row = &thread_rows[thread * row_size];
            float* d_bias_sum = &chunk_d_bias[chunk * V];
            const Chunk rows(M, chunk, CHUNKS);
            for (Index m = rows.begin; m < rows.end; m++) {
                T* x_m = logits + m * V;  // [V]
                if (target[m] < 0) {
                    nll[m] = smoothed[m] = 0;
                    for (Index k = 0; k < V && gradient; k += LANES) store(x_m + k, Vec{}, V - k);
                    continue;
                }
                Vec maximum = broadcast(-3e38f), total = {}, sum_of_x = {};
                for (Index k = 0; k < V; k += LANES) {
                    Index n = V - k;
                    Vec x = load(x_m + k, n) + load(bias + k, n);
                    if (n < LANES)
                        for (Index l = n; l < LANES; l++) x[l] = -3e38f;
                    store(&row[k], x);
                    maximum = max(maximum, x);
                }
                float top = maximum[0];
                for (int l = 1; l < LANES; l++) top = max(top, maximum[l]);
                float x_target = row[target[m]] - top;
                for (Index k = 0; k < V; k += LANES) {
                    Vec x = load(&row[k]) - top;
                    if (eps > 0) {
                        Vec counted = x;
                        for (Index l = V - k; l < LANES; l++) counted[l] = 0;
                        sum_of_x += counted;
                    }
                    Vec e = vec_exp(x);
                    for (Index l = V - k; l < LANES; l++) e[l] = 0;
                    total += e;
                    store(&row[k], e);
                }
                float z = sum(total), log_z = logf(z);
                nll[m] = log_z - x_target;
                smoothed[m] =
                    (1 - eps) * nll[m] + (eps > 0 ? eps * (log_z - sum(sum_of_x) / V) : 0);
                if (!gradient) continue;
                float scale = 1 / z, uniform = eps / V;
                row[target[m]] -= (1 - eps) * z;
                for (Index k = 0; k < V; k += LANES) {
                    Index n = V - k;
                    Vec g = load(&row[k]) * scale - uniform;
                    store(x_m + k, g, n);
                    store(d_bias_sum + k, load(d_bias_sum + k, n) + g, n);
                }
            }
        });
    });
    for (Index chunk = 0; chunk < CHUNKS && gradient; chunk++)
        for (Index k = 0; k < V; k += LANES)
            store(d_bias + k, load(d_bias + k, V - k) + load(&chunk_d_bias[chunk * V + k], V - k),
                  V - k);
}

}  // namespace

#define SOFTMAX_LOSS(NAME, T)                                                                      \
    EXPORT void softmax_loss_##NAME(Index threads, Index M, Index V, T* logits, const float* bias, \
                                    const int64_t* target, float eps, Index gradient, float* nll,  \
                                    float* smoothed, float* d_bias) {                              \
        softmax_loss<T>(threads, M, V, logits, bias, target, eps, gradient, nll, smoothed,         \
                        d_bias);                                                                   \
    }

SOFTMAX_LOSS(fp32, float)
SOFTMAX_LOSS(bf16, bfloat16)
