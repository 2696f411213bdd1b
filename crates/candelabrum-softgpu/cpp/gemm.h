// Matrix products for cuBLAS and cuBLASLt, of numbers whose type is known at run time only.
#pragma once
#include "product.h"
#include "types.h"

// c = alpha a b + beta c, column by column: a is (m, k), b is (k, n), c is (m, n).
struct Gemm {
    int ta, tb, m, n, k;
    const void *alpha, *beta;
    int at, lda, bt, ldb, ct, ldc;
    int scalar;
    bool tf32 = false;
};
// The nearest number of TF32, which has 10 bits behind the point.
inline float to_tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&x, &bits, sizeof bits);
    return x;
}
// `last` maps a number of c, in row i and column j, to what is written there.
template <class A, class Last>
void gemm(const Gemm &g, A alpha, A beta, const void *a, const void *b, void *c, Last last) {
    size_t m = g.m, n = g.n, k = alpha != 0 ? g.k : 0;
    // Columns lie one after the other here, so the product is that of the transposed matrices.
    std::vector<A> left(n * k), right(k * m), result(n * m);
    for (size_t j = 0; j < n; j++)
        for (size_t l = 0; l < k; l++)
            left[j * k + l] = get<A>(b, g.bt, g.tb ? j + l * g.ldb : l + j * g.ldb);
    for (size_t l = 0; l < k; l++)
        for (size_t i = 0; i < m; i++)
            right[l * m + i] = get<A>(a, g.at, g.ta ? l + i * g.lda : i + l * g.lda);
    if (g.tf32 || (every_product_in_tf32() && g.at == R_32F)) {
        for (A &x : left) x = to_tf32((float)x);
        for (A &x : right) x = to_tf32((float)x);
    }
    product(n, m, k, left.data(), right.data(), result.data(), false);
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < m; i++) {
            A v = alpha * result[j * m + i];
            if (beta != 0) v += beta * get<A>(c, g.ct, i + j * g.ldc);
            put<A>(c, g.ct, i + j * g.ldc, last(v, i, j));
        }
}
template <class A>
void gemm(const Gemm &g, A alpha, A beta, const void *a, const void *b, void *c) {
    gemm<A>(g, alpha, beta, a, b, c, [](A v, size_t, size_t) { return v; });
}
