// Cross-entropy over the vocabulary and its gradient, row by row, over logits in place: the native twin of the chunk
// in `models/outputs.py`.
#include "rows.h"

namespace rnnsearch {

// logits: [M, V], without the bias; overwritten by d/dlogits = softmax - (1 - eps) onehot - eps / V where `gradient`.
// nll: [M]. smoothed: [M], the loss with smoothing eps. d_bias: [V], added to.
template <class T>
void softmax_loss(Index M, Index V, T* logits, const float* bias, const int64_t* target, float eps, bool gradient,
                  float* nll, float* smoothed, float* d_bias) {
    Partial to_bias(V);
#pragma omp parallel
    {
        Share rows(M, omp_get_thread_num(), omp_get_num_threads());
        std::vector<float> row(V + LANES);
        float* own = gradient ? to_bias.start(omp_get_thread_num()) : nullptr;
        for (Index m = rows.begin; m < rows.end; m++) {
            T* at = logits + m * V;
            Vec highest = all(-3e38f), total = {}, plain = {};
            for (Index k = 0; k < V; k += LANES) {
                Index n = V - k;
                Vec x = load(at + k, n) + load(bias + k, n);
                if (n < LANES)
                    for (Index l = n; l < LANES; l++) x[l] = -3e38f;
                store(&row[k], x);
                highest = ::most(highest, x);
            }
            float top = highest[0];
            for (int l = 1; l < LANES; l++) top = std::max(top, highest[l]);
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
            float z = sum(total), log_z = __builtin_logf(z);
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
    }
    if (gradient) to_bias.add_to(d_bias);
}

}  // namespace rnnsearch

using namespace rnnsearch;

#define SOFTMAX(NAME, T)                                                                                              \
    extern "C" void softmax_loss_##NAME(Index M, Index V, T* logits, const float* bias, const int64_t* target,         \
                                        float eps, Index gradient, float* nll, float* smoothed, float* d_bias) {         \
        softmax_loss<T>(M, V, logits, bias, target, eps, gradient, nll, smoothed, d_bias);                             \
    }

SOFTMAX(fp32, float)
SOFTMAX(bf16, bfloat16)
