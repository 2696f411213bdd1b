// libcublas: matrix products, column by column; sums of f16, bf16 and f32 in f32.
#include "alignment.h"
#include "counts.h"
#include "gemm.h"
#include "memory.h"
#include "turns.h"

enum {
    BLAS_OK = 0,
    BLAS_NOT_INIT = 1,
    BLAS_INVALID = 7,
    BLAS_FAILED = 13,
    BLAS_NOT_SUPPORTED = 15
};
struct Blas {
    void *stream = nullptr;
    int pointer_mode = 0;
};
API int cublasCreate_v2(void **h) {
    *h = new Blas;
    return BLAS_OK;
}
API int cublasDestroy_v2(void *h) {
    delete (Blas *)h;
    return BLAS_OK;
}
API int cublasSetStream_v2(void *h, void *s) {
    ((Blas *)h)->stream = s;
    return BLAS_OK;
}
API int cublasSetPointerMode_v2(void *h, int m) {
    ((Blas *)h)->pointer_mode = m;
    return BLAS_OK;
}
API int cublasSetWorkspace_v2(void *h, void *at, size_t bytes) {
    if (!is_device((devptr)at, bytes)) return BLAS_INVALID;
    if (trace()) say("cublasSetWorkspace %zu", bytes);
    return BLAS_OK;
}

static int batched(void *h, Gemm g, const void *a, long long sa, const void *b, long long sb,
                   void *c, long long sc, int count) {
    auto *blas = (Blas *)h;
    if (!blas) return BLAS_NOT_INIT;
    if (g.m < 0 || g.n < 0 || g.k < 0 || count < 0) return BLAS_INVALID;
    auto most = [](int x) { return x > 1 ? x : 1; };
    if (g.lda < most(g.ta ? g.k : g.m) || g.ldb < most(g.tb ? g.n : g.k) || g.ldc < most(g.m))
        return BLAS_INVALID;
    if (!g.m || !g.n || !count) return BLAS_OK;
    Stream *s = stream_of(blas->stream);
    if (!s) return BLAS_NOT_INIT;
    if (s->ctx->error) return BLAS_FAILED;
    count_call(Call::BLAS);
    TRACE("gemm %d x %d x %d", g.m, g.n, g.k);
    size_t spread = count > 1 ? (size_t)(count - 1) : 0;
    auto reach = [&](int rows, int cols, int ld, long long stride, int type) {
        return ((size_t)(cols ? cols - 1 : 0) * ld + rows + spread * stride) * size_of(type);
    };
    if (g.k &&
        (!is_device((devptr)a, reach(g.ta ? g.k : g.m, g.ta ? g.m : g.k, g.lda, sa, g.at)) ||
         !is_device((devptr)b, reach(g.tb ? g.n : g.k, g.tb ? g.k : g.n, g.ldb, sb, g.bt)))) {
        say("gemm reads outside of an allocation");
        return BLAS_INVALID;
    }
    if (!is_device((devptr)c, reach(g.m, g.n, g.ldc, sc, g.ct))) {
        say("gemm writes outside of an allocation");
        return BLAS_INVALID;
    }
    if (misaligned(s, "gemm", "A", a, size_of(g.at)) ||
        misaligned(s, "gemm", "B", b, size_of(g.bt)) ||
        misaligned(s, "gemm", "C", c, size_of(g.ct)))
        return BLAS_FAILED;
    double alpha = 0, beta = 0;
    bool on_device = blas->pointer_mode == 1;
    if (!on_device) {
        alpha = get<double>(g.alpha, g.scalar, 0);
        beta = get<double>(g.beta, g.scalar, 0);
    }
    enqueue(s, [=] {
        Turn turn(s->ctx->device);
        double x = on_device ? get<double>(g.alpha, g.scalar, 0) : alpha,
               y = on_device ? get<double>(g.beta, g.scalar, 0) : beta;
        for (int i = 0; i < count; i++) {
            auto *p = (const char *)a + i * sa * size_of(g.at);
            auto *q = (const char *)b + i * sb * size_of(g.bt);
            auto *r = (char *)c + i * sc * size_of(g.ct);
            if (g.ct == R_64F)
                gemm<double>(g, x, y, p, q, r);
            else
                gemm<float>(g, (float)x, (float)y, p, q, r);
        }
    });
    return BLAS_OK;
}
// The type of alpha and beta, by the compute type.
static int scalar_of(int compute) {
    switch (compute) {
    case 64:
    case 65: return R_16F;
    case 68:
    case 69:
    case 74:
    case 75:
    case 77: return R_32F;
    case 70:
    case 71: return R_64F;
    case 72:
    case 73: return R_32I;
    }
    return R_32F;
}
API int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha,
                                   const void *a, int at, int lda, long long sa, const void *b,
                                   int bt, int ldb, long long sb, const void *beta, void *c, int ct,
                                   int ldc, long long sc, int count, int compute, int) {
    return batched(h,
                   {ta, tb, m, n, k, alpha, beta, at, lda, bt, ldb, ct, ldc, scalar_of(compute),
                    compute == 77},
                   a, sa, b, sb, c, sc, count);
}
API int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                     int at, int lda, const void *b, int bt, int ldb, const void *beta, void *c,
                     int ct, int ldc, int compute, int) {
    return batched(h,
                   {ta, tb, m, n, k, alpha, beta, at, lda, bt, ldb, ct, ldc, scalar_of(compute),
                    compute == 77},
                   a, 0, b, 0, c, 0, 1);
}
#define GEMM(name, T, type)                                                                        \
    API int cublas##name##gemm_v2(void *h, int ta, int tb, int m, int n, int k, const T *alpha,    \
                                  const T *a, int lda, const T *b, int ldb, const T *beta, T *c,   \
                                  int ldc) {                                                       \
        return batched(h, {ta, tb, m, n, k, alpha, beta, type, lda, type, ldb, type, ldc, type},   \
                       a, 0, b, 0, c, 0, 1);                                                       \
    }                                                                                              \
    API int cublas##name##gemmStridedBatched(void *h, int ta, int tb, int m, int n, int k,         \
                                             const T *alpha, const T *a, int lda, long long sa,    \
                                             const T *b, int ldb, long long sb, const T *beta,     \
                                             T *c, int ldc, long long sc, int count) {             \
        return batched(h, {ta, tb, m, n, k, alpha, beta, type, lda, type, ldb, type, ldc, type},   \
                       a, sa, b, sb, c, sc, count);                                                \
    }                                                                                              \
    API int cublas##name##gemv_v2(void *h, int t, int m, int n, const T *alpha, const T *a,        \
                                  int lda, const T *x, int incx, const T *beta, T *y, int incy) {  \
        if (incx != 1 || incy != 1) return BLAS_NOT_SUPPORTED;                                     \
        return batched(h,                                                                          \
                       {t, 0, t ? n : m, 1, t ? m : n, alpha, beta, type, lda, type, t ? m : n,    \
                        type, t ? n : m, type},                                                    \
                       a, 0, x, 0, y, 0, 1);                                                       \
    }
GEMM(S, float, R_32F)
GEMM(D, double, R_64F)
API int cublasHgemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const __half *alpha,
                                  const __half *a, int lda, long long sa, const __half *b, int ldb,
                                  long long sb, const __half *beta, __half *c, int ldc,
                                  long long sc, int count) {
    return batched(h, {ta, tb, m, n, k, alpha, beta, R_16F, lda, R_16F, ldb, R_16F, ldc, R_16F}, a,
                   sa, b, sb, c, sc, count);
}
