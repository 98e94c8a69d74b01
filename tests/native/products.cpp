// Properties of products and of the loss; and the test program.
#include "test_utils.h"

#ifdef __AMX_TILE__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define DECLARE_PRODUCT(NAME, O)                                                                \
    EXPORT void NAME(Index, Index, Index, Index, const void*, Index, Index, Index, const void*, \
                     Index, Index, Index, const float*, O*);
DECLARE_PRODUCT(product_fp32, float)
DECLARE_PRODUCT(product_bf16, bfloat16)
DECLARE_PRODUCT(product_unrounded_bf16, float)
#define DECLARE_LOSS(NAME, T)                                                                     \
    EXPORT void NAME(Index, Index, Index, T*, const float*, const int64_t*, float, Index, float*, \
                     float*, float*);
DECLARE_LOSS(softmax_loss_fp32, float)
DECLARE_LOSS(softmax_loss_bf16, bfloat16)
EXPORT void pack(const float*, const PackedMatrix*);
EXPORT void linear(const PackedMatrix*, const float*, int64_t, float*, int32_t);
EXPORT int64_t panel_width();

namespace {

/// x [M, K] w^T + bias of several shapes, with x transposed or not, and each operand in T or fp32.
template <class T, class O, class F>
void test_strided_product(const char* name, F product, double tolerance) {
    const Index sizes[][3] = {{1, 1, 1}, {5, 16, 7}, {13, 70, 64}, {50, 33, 2100}, {70, 64, 96}};
    for (auto& [M, N, K] : sizes)
        for (int transposed = 0; transposed < 2; transposed++) {
            const Doubles x = random_values<T>(M * K), w = random_values<T>(N * K),
                          bias = random_values<float>(N);
            const Index row_stride = transposed ? 1 : K, column_stride = transposed ? M : 1;
            Doubles expected(M * N);
            for (Index m = 0; m < M; m++)
                for (Index n = 0; n < N; n++) {
                    expected[m * N + n] = transposed ? bias[n] : 0;
                    for (Index k = 0; k < K; k++)
                        expected[m * N + n] += x[m * row_stride + k * column_stride] * w[n * K + k];
                }
            const std::vector<T> x_T = from_doubles<T>(x), w_T = from_doubles<T>(w);
            const std::vector<float> x_fp32 = from_doubles<float>(x),
                                     w_fp32 = from_doubles<float>(w);
            const std::vector<float> b = from_doubles<float>(bias);
            for (int fp32 = 0; fp32 < 4; fp32++) {  // neither, x, w, both in fp32
                std::vector<O> out(M * N);
                product(THREADS, M, N, K, fp32 & 1 ? (const void*)x_fp32.data() : x_T.data(),
                        row_stride, column_stride, fp32 & 1,
                        fp32 & 2 ? (const void*)w_fp32.data() : w_T.data(), K, 1, fp32 & 2,
                        transposed ? b.data() : nullptr, out.data());
                check(name, to_doubles(out), expected, tolerance);
            }
        }
}

/// Rounds a row as packed products of a type do.
void round_row(double* x, Index count, int dtype) {
    double top = 0;
    for (Index i = 0; i < count; i++) top = fmax(top, fabs(x[i]));
    const float scale = float(top) / 127.0f, inverse = 1.0f / scale;
    for (Index i = 0; i < count; i++) {
        if (dtype == BF16) x[i] = to_double(to_bf16(float(x[i])));
        if (dtype == INT8) x[i] = double(lrintf(float(x[i]) * inverse)) * scale;
    }
}

void test_packed_product(const char* name, int dtype, Index inputs, Index outputs) {
    const Index width = panel_width();
    const Index rounded = (outputs + width - 1) / width * width;
    for (Index rows : {1, 3, 9, 40}) {
        Doubles x = random_values<float>(rows * inputs), w = random_values<float>(outputs * inputs);
        const Doubles bias = random_values<float>(rounded);
        std::vector<float> x_fp32 = from_doubles<float>(x), weight = from_doubles<float>(w);
        std::vector<float> b = from_doubles<float>(bias), scale(rounded);
        std::vector<float> panels(rounded * inputs), y(rows * outputs);
        std::vector<int32_t> correction(rounded);
        const PackedMatrix W = {panels.data(), b.data(), scale.data(), correction.data(),
                                outputs,       inputs,   dtype};
        pack(weight.data(), &W);
        linear(&W, x_fp32.data(), rows, y.data(), THREADS);
        for (Index m = 0; m < rows; m++) round_row(&x[m * inputs], inputs, dtype);
        for (Index n = 0; n < outputs; n++) round_row(&w[n * inputs], inputs, dtype);
        Doubles expected(rows * outputs);
        for (Index m = 0; m < rows; m++)
            for (Index n = 0; n < outputs; n++) {
                expected[m * outputs + n] = bias[n];
                for (Index k = 0; k < inputs; k++)
                    expected[m * outputs + n] += x[m * inputs + k] * w[n * inputs + k];
            }
        check(name, to_doubles(y), expected, FP32_TOLERANCE);
    }
}

template <class T, class F>
void test_loss(const char* name, F softmax_loss, double tolerance) {
    for (Index V : {5, 16, 50})
        for (float eps : {0.0f, 0.1f}) {
            const Index M = 7;
            const Doubles x = random_values<T>(M * V, 4), bias = random_values<float>(V);
            Doubles expected_nll, expected_smoothed, expected_gradient, expected_d_bias(V, 1);
            std::vector<int64_t> target(M);
            for (Index m = 0; m < M; m++) {
                target[m] = m * 3 % V;
                double z = 0, uniform = 0;
                for (Index v = 0; v < V; v++) z += exp(x[m * V + v] + bias[v]);
                for (Index v = 0; v < V; v++) {
                    const double log_p = x[m * V + v] + bias[v] - log(z);
                    uniform -= log_p / V;
                    expected_gradient.push_back(exp(log_p) - (v == target[m]) * (1 - eps) -
                                                eps / V);
                    expected_d_bias[v] += expected_gradient.back();
                    if (v == target[m]) expected_nll.push_back(-log_p);
                }
                expected_smoothed.push_back((1 - eps) * expected_nll.back() + eps * uniform);
            }
            std::vector<T> logits = from_doubles<T>(x);
            std::vector<float> nll(M), smoothed(M), d_bias(V, 1);  // d_bias is accumulated into
            softmax_loss(THREADS, M, V, logits.data(), from_doubles<float>(bias).data(),
                         target.data(), eps, 1, nll.data(), smoothed.data(), d_bias.data());
            check(name, to_doubles(nll), expected_nll, FP32_TOLERANCE);
            check(name, to_doubles(smoothed), expected_smoothed, FP32_TOLERANCE);
            check(name, to_doubles(d_bias), expected_d_bias, FP32_TOLERANCE);
            check(name, to_doubles(logits), expected_gradient, tolerance);
        }
}

}  // namespace

int failures = 0;

void test_products() {
    test_strided_product<float, float>("product fp32", product_fp32, FP32_TOLERANCE);
    test_strided_product<bfloat16, bfloat16>("product bf16", product_bf16, BF16_TOLERANCE);
    test_strided_product<bfloat16, float>("product bf16, unrounded", product_unrounded_bf16,
                                          FP32_TOLERANCE);
    for (auto& [inputs, outputs] :
         {std::pair<Index, Index>{22, 37}, {150, 160}}) {  // below one tile, and several tiles
        test_packed_product("packed fp32", FP32, inputs, outputs);
        test_packed_product("packed bf16", BF16, inputs, outputs);
        test_packed_product("packed int8", INT8, inputs, outputs);
    }
    test_loss<float>("loss fp32", softmax_loss_fp32, FP32_TOLERANCE);
    test_loss<bfloat16>("loss bf16", softmax_loss_bf16, BF16_TOLERANCE);
}

int main() {
#ifdef __AMX_TILE__
    syscall(SYS_arch_prctl, 0x1023, 18);  // request AMX tiles from the system, as library.py does
#endif
    test_threads();
    test_products();
    test_recurrences();
    test_search();
    printf(failures ? "%d checks failed\n" : "all checks passed\n", failures);
    return failures != 0;
}
