// Cross-entropy over the vocabulary and its gradient, row by row, over logits in place: the native twin of the chunk
// in `ops/loss.py`.
#include "team.h"
#include "vectors.h"

namespace {

constexpr Index PARTS = 16;  // of the rows; each has its own sum for the bias, added up in their order

// logits: [M, V], without the bias; overwritten by d/dlogits = softmax - (1 - eps) onehot - eps / V where `gradient`.
// nll: [M]. smoothed: [M], the loss with smoothing eps. d_bias: [V], added to.
template <class T>
void softmax_loss(Index threads, Index M, Index V, T* logits, const float* bias, const int64_t* target, float eps,
                  bool gradient, float* nll, float* smoothed, float* d_bias) {
    Buffer<float> to_bias;
    if (gradient) to_bias.zeros(PARTS * V);
    in_team(threads, [&](Member& me) {
        Buffer<float> row(V + LANES);
        me.share(PARTS, [&](Index part) {
            float* own = &to_bias[part * V];
            const Share rows(M, part, PARTS);
            for (Index m = rows.begin; m < rows.end; m++) {
                T* at = logits + m * V;
                Vec highest = all(-3e38f), total = {}, plain = {};
                for (Index k = 0; k < V; k += LANES) {
                    Index n = V - k;
                    Vec x = load(at + k, n) + load(bias + k, n);
                    if (n < LANES)
                        for (Index l = n; l < LANES; l++) x[l] = -3e38f;
                    store(&row[k], x);
                    highest = most(highest, x);
                }
                float top = highest[0];
                for (int l = 1; l < LANES; l++) top = greater(top, highest[l]);
                float of_target = row[target[m]] - top;
                for (Index k = 0; k < V; k += LANES) {
                    Vec x = load(&row[k]) - top;
                    if (eps > 0) {
                        Vec counted = x;
                        for (Index l = V - k; l < LANES; l++) counted[l] = 0;
                        plain += counted;
                    }
                    Vec e = exponential(x);
                    for (Index l = V - k; l < LANES; l++) e[l] = 0;
                    total += e;
                    store(&row[k], e);
                }
                float z = sum(total), log_z = logf(z);
                nll[m] = log_z - of_target;
                smoothed[m] = (1 - eps) * nll[m] + (eps > 0 ? eps * (log_z - sum(plain) / V) : 0);
                if (!gradient) continue;
                float scale = 1 / z, shared = eps / V;
                row[target[m]] -= (1 - eps) * z;
                for (Index k = 0; k < V; k += LANES) {
                    Index n = V - k;
                    Vec g = load(&row[k]) * scale - shared;
                    store(at + k, g, n);
                    store(own + k, load(own + k, n) + g, n);
                }
            }
        });
    });
    for (Index part = 0; part < PARTS && gradient; part++)
        for (Index k = 0; k < V; k += LANES)
            store(d_bias + k, load(d_bias + k, V - k) + load(&to_bias[part * V + k], V - k), V - k);
}

}  // namespace

#define SOFTMAX(NAME, T)                                                                                              \
    EXPORT void softmax_loss_##NAME(Index threads, Index M, Index V, T* logits, const float* bias,                \
                                        const int64_t* target, float eps, Index gradient, float* nll,                  \
                                        float* smoothed, float* d_bias) {                                              \
        softmax_loss<T>(threads, M, V, logits, bias, target, eps, gradient, nll, smoothed, d_bias);                    \
    }

SOFTMAX(fp32, float)
SOFTMAX(bf16, bfloat16)
