// Products, the loss, and the program: threads like PyTorch's, and all laws one after the other.
#include <thread>

#include "laws.h"

#ifdef __AMX_TILE__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define PRODUCT_OF(NAME, O)                                                                                           \
    EXPORT void NAME(Index, Index, Index, Index, const void*, Index, Index, Index, const void*, Index, Index, Index,  \
                     const float*, O*);
PRODUCT_OF(product_fp32, float)
PRODUCT_OF(product_bf16, bfloat16)
PRODUCT_OF(product_unrounded_bf16, float)
#define LOSS_OF(NAME, T)                                                                                              \
    EXPORT void NAME(Index, Index, Index, T*, const float*, const int64_t*, float, Index, float*, float*, float*);
LOSS_OF(softmax_loss_fp32, float)
LOSS_OF(softmax_loss_bf16, bfloat16)
EXPORT void pack(const float*, const Matrix*);
EXPORT void linear(const Matrix*, const float*, int64_t, float*, int32_t);
EXPORT int64_t panel_width();
EXPORT void use_pool(void*, void*, void*);

namespace {

template <class T, class O, class F>
void any_shape(const char* what, F product, double tolerance) {
    const Index sizes[][3] = {{1, 1, 1}, {5, 16, 7}, {13, 70, 64}, {50, 33, 2100}, {70, 64, 96}};
    for (auto& [M, N, K] : sizes)
        for (int turned = 0; turned < 2; turned++) {
            const Numbers x = draw<T>(M * K), w = draw<T>(N * K), bias = draw<float>(N);
            const Index row = turned ? 1 : K, column = turned ? M : 1;
            Numbers expected(M * N);
            for (Index m = 0; m < M; m++)
                for (Index n = 0; n < N; n++) {
                    expected[m * N + n] = turned ? bias[n] : 0;
                    for (Index k = 0; k < K; k++) expected[m * N + n] += x[m * row + k * column] * w[n * K + k];
                }
            const std::vector<T> x_in_T = as<T>(x), w_in_T = as<T>(w);
            const std::vector<float> wide_x = as<float>(x), wide_w = as<float>(w), b = as<float>(bias);
            for (int wide = 0; wide < 4; wide++) {  // neither, x, w, both in fp32
                std::vector<O> out(M * N);
                product(THREADS, M, N, K, wide & 1 ? (const void*)wide_x.data() : x_in_T.data(), row, column, wide & 1,
                        wide & 2 ? (const void*)wide_w.data() : w_in_T.data(), K, 1, wide & 2, turned ? b.data() : nullptr,
                        out.data());
                check(what, of(out), expected, tolerance);
            }
        }
}

// What a row of numbers becomes in a kind.
void round_row(double* x, Index count, int kind) {
    double top = 0;
    for (Index i = 0; i < count; i++) top = fmax(top, fabs(x[i]));
    const float scale = float(top) / 127.0f, inverse = 1.0f / scale;
    for (Index i = 0; i < count; i++) {
        if (kind == BF16) x[i] = wide(narrow(float(x[i])));
        if (kind == INT8) x[i] = double(lrintf(float(x[i]) * inverse)) * scale;
    }
}

void packed(const char* what, int kind, Index inputs, Index outputs) {
    const Index panels = panel_width();
    const Index rounded = (outputs + panels - 1) / panels * panels;
    for (Index rows : {1, 3, 9, 40}) {
        Numbers x = draw<float>(rows * inputs), w = draw<float>(outputs * inputs), bias = draw<float>(rounded);
        std::vector<float> given = as<float>(x), weight = as<float>(w), b = as<float>(bias), scale(rounded);
        std::vector<float> laid(rounded * inputs), y(rows * outputs);
        std::vector<int32_t> excess(rounded);
        const Matrix W = {laid.data(), b.data(), scale.data(), excess.data(), outputs, inputs, kind};
        pack(weight.data(), &W);
        linear(&W, given.data(), rows, y.data(), THREADS);
        for (Index m = 0; m < rows; m++) round_row(&x[m * inputs], inputs, kind);
        for (Index n = 0; n < outputs; n++) round_row(&w[n * inputs], inputs, kind);
        Numbers expected(rows * outputs);
        for (Index m = 0; m < rows; m++)
            for (Index n = 0; n < outputs; n++) {
                expected[m * outputs + n] = bias[n];
                for (Index k = 0; k < inputs; k++) expected[m * outputs + n] += x[m * inputs + k] * w[n * inputs + k];
            }
        check(what, of(y), expected, EXACT);
    }
}

template <class T, class F>
void loss(const char* what, F softmax_loss, double tolerance) {
    for (Index V : {5, 16, 50})
        for (float eps : {0.0f, 0.1f}) {
            const Index M = 7;
            const Numbers x = draw<T>(M * V, 4), bias = draw<float>(V);
            Numbers nlls, smoothed, gradient, to_bias(V, 1);
            std::vector<int64_t> target(M);
            for (Index m = 0; m < M; m++) {
                target[m] = m * 3 % V;
                double z = 0, all = 0;
                for (Index v = 0; v < V; v++) z += exp(x[m * V + v] + bias[v]);
                for (Index v = 0; v < V; v++) {
                    const double log_p = x[m * V + v] + bias[v] - log(z);
                    all -= log_p / V;
                    gradient.push_back(exp(log_p) - (v == target[m]) * (1 - eps) - eps / V);
                    to_bias[v] += gradient.back();
                    if (v == target[m]) nlls.push_back(-log_p);
                }
                smoothed.push_back((1 - eps) * nlls.back() + eps * all);
            }
            std::vector<T> logits = as<T>(x);
            std::vector<float> nll(M), cost(M), d_bias(V, 1);
            softmax_loss(THREADS, M, V, logits.data(), as<float>(bias).data(), target.data(), eps, 1, nll.data(),
                         cost.data(), d_bias.data());
            check(what, of(nll), nlls, EXACT);
            check(what, of(cost), smoothed, EXACT);
            check(what, of(d_bias), to_bias, EXACT);
            check(what, of(logits), gradient, tolerance);
        }
}

thread_local int own_number = 0, own_count = 1;

void parallel(void (*body)(void*), void* given, unsigned count, unsigned) {
    std::vector<std::thread> threads;
    for (unsigned n = 0; n < count; n++)
        threads.emplace_back([=] {
            own_number = int(n), own_count = int(count);
            body(given);
        });
    for (std::thread& thread : threads) thread.join();
}
int number() { return own_number; }
int count() { return own_count; }

}  // namespace

int failures = 0;

void laws_of_products() {
    any_shape<float, float>("product fp32", product_fp32, EXACT);
    any_shape<bfloat16, bfloat16>("product bf16", product_bf16, ROUGH);
    any_shape<bfloat16, float>("product bf16, unrounded", product_unrounded_bf16, EXACT);
    for (auto& [inputs, outputs] : {std::pair<Index, Index>{22, 37}, {150, 160}}) {  // less than a tile, and several
        packed("packed fp32", FP32, inputs, outputs);
        packed("packed bf16", BF16, inputs, outputs);
        packed("packed int8", INT8, inputs, outputs);
    }
    loss<float>("loss fp32", softmax_loss_fp32, EXACT);
    loss<bfloat16>("loss bf16", softmax_loss_bf16, ROUGH);
}

int main() {
#ifdef __AMX_TILE__
    syscall(SYS_arch_prctl, 0x1023, 18);  // ask the system for tiles, as library.py does
#endif
    use_pool((void*)parallel, (void*)number, (void*)count);
    laws_of_products();
    laws_of_recurrences();
    laws_of_search();
    printf(failures ? "%d laws do not hold\n" : "all laws hold\n", failures);
    return failures != 0;
}
