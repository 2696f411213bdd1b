// libcublasLt: matrix products that end with a bias and an activation. Matrices are column by
// column.
#include "counts.h"
#include "gemm.h"
#include "memory.h"
#include "streams.h"
#include "turns.h"
#include <cmath>

namespace {
enum { LT_OK = 0, LT_NOT_INIT = 1, LT_INVALID = 7, LT_FAILED = 13, LT_NOT_SUPPORTED = 15 };
// Parts of an epilogue.
enum { DEFAULT = 1, RELU = 2, BIAS = 4, GELU = 32, AUX = 128 };
enum { COMPUTE_32F = 68, COMPUTE_32F_TF32 = 77 };

struct Layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
    // The bytes from the first number to the end of the last one.
    size_t bytes() const { return ((cols ? cols - 1 : 0) * ld + rows) * size_of(type); }
};
struct Product {
    int compute, scale, ta = 0, tb = 0, tc = 0;
    uint32_t epilogue = DEFAULT;
    const void *bias = nullptr;
    int bias_type = -1; // that of the result
    void *aux = nullptr;
    int64_t aux_ld = 0;
    bool has(int part) const { return epilogue & part; }
    int bias_type_for(const Layout &d) const { return bias_type < 0 ? d.type : bias_type; }
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t alignment[4] = {256, 256, 256, 256}; // of A, B, C, D
};
// What the heuristic keeps in the 64 bytes of an algorithm.
struct Algorithm {
    uint64_t workspace;
    uint32_t alignment[4];
    uint32_t bias, aux; // the alignment of these addresses
    uint64_t unused[4];
};
struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(Algorithm) == 64 && sizeof(Heuristic) == 96, "as in cublasLt.h");
} // namespace

API size_t cublasLtGetVersion() { return 130100; }
API int cublasLtCreate(void **h) {
    *h = new int;
    return LT_OK;
}
API int cublasLtDestroy(void *h) {
    delete (int *)h;
    return LT_OK;
}
API int cublasLtMatrixLayoutCreate(void **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    *l = new Layout{type, rows, cols, ld};
    return LT_OK;
}
API int cublasLtMatrixLayoutDestroy(void *l) {
    delete (Layout *)l;
    return LT_OK;
}
API int cublasLtMatmulDescCreate(void **d, int compute, int scale) {
    *d = new Product{compute, scale};
    return LT_OK;
}
API int cublasLtMatmulDescDestroy(void *d) {
    delete (Product *)d;
    return LT_OK;
}
template <class T> static int set(T &to, const void *from, size_t size) {
    if (size != sizeof(T)) return LT_INVALID;
    memcpy(&to, from, size);
    return LT_OK;
}
API int cublasLtMatmulDescSetAttribute(void *v, int attribute, const void *from, size_t size) {
    auto &d = *(Product *)v;
    switch (attribute) {
    case 3: return set(d.ta, from, size);
    case 4: return set(d.tb, from, size);
    case 5: return set(d.tc, from, size);
    case 7: return set(d.epilogue, from, size);
    case 8: return set(d.bias, from, size);
    case 11: return set(d.aux, from, size);
    case 12: return set(d.aux_ld, from, size);
    case 26: return set(d.bias_type, from, size);
    }
    say("cublasLtMatmulDescSetAttribute: attribute %d is missing", attribute);
    return LT_NOT_SUPPORTED;
}
API int cublasLtMatmulPreferenceCreate(void **p) {
    *p = new Preference;
    return LT_OK;
}
API int cublasLtMatmulPreferenceDestroy(void *p) {
    delete (Preference *)p;
    return LT_OK;
}
API int cublasLtMatmulPreferenceSetAttribute(void *v, int attribute, const void *from,
                                             size_t size) {
    auto &p = *(Preference *)v;
    switch (attribute) {
    case 1: return set(p.workspace, from, size);
    case 5:
    case 6:
    case 7:
    case 8: return set(p.alignment[attribute - 5], from, size);
    }
    say("cublasLtMatmulPreferenceSetAttribute: attribute %d is missing", attribute);
    return LT_NOT_SUPPORTED;
}

// The largest power of two, up to 256, of which the address is a multiple.
static uint32_t alignment_of(const void *p) {
    uintptr_t address = (uintptr_t)p | 256;
    return address & -address;
}
static bool is_float(int type) { return type == R_32F || type == R_16F || type == R_16BF; }
// Whether the sizes fit together, and whether such a product exists here.
static int check(const Product &o, const Layout &a, const Layout &b, const Layout &c,
                 const Layout &d) {
    uint64_t m = o.ta ? a.cols : a.rows, k = o.ta ? a.rows : a.cols, n = o.tb ? b.rows : b.cols;
    if ((o.tb ? b.cols : b.rows) != k || d.rows != m || d.cols != n) return LT_INVALID;
    if (c.rows != m || c.cols != n || c.type != d.type) return LT_INVALID;
    for (auto *l : {&a, &b, &c, &d})
        if (!l->rows || !l->cols || l->ld < (int64_t)l->rows) return LT_INVALID;
    if (o.tc) return LT_NOT_SUPPORTED;
    bool types = is_float(a.type) && a.type == b.type && is_float(d.type) && o.scale == R_32F;
    bool compute = o.compute == COMPUTE_32F || (o.compute == COMPUTE_32F_TF32 && a.type == R_32F);
    switch (o.epilogue) {
    case DEFAULT:
    case RELU:
    case BIAS:
    case RELU | BIAS:
    case GELU:
    case GELU | BIAS: break;
    case GELU | AUX:
    case GELU | AUX | BIAS:
        if (o.aux_ld % 8 || o.aux_ld < (int64_t)m) return LT_NOT_SUPPORTED;
        break;
    default: return LT_NOT_SUPPORTED;
    }
    if (o.has(BIAS) && !is_float(o.bias_type_for(d))) return LT_NOT_SUPPORTED;
    return types && compute ? LT_OK : LT_NOT_SUPPORTED;
}
API int cublasLtMatmulAlgoGetHeuristic(void *h, void *o, void *a, void *b, void *c, void *d,
                                       void *p, int most, Heuristic *found, int *count) {
    if (!h) return LT_NOT_INIT;
    *count = 0;
    if (most < 1) return LT_INVALID;
    if (env("SOFTGPU_NO_ALGORITHM", 0)) return LT_NOT_SUPPORTED;
    auto &product = *(Product *)o;
    int code = check(product, *(Layout *)a, *(Layout *)b, *(Layout *)c, *(Layout *)d);
    if (code) return code;
    auto &preference = *(Preference *)p;
    *found = {};
    // Some workspace where it is permitted, so that one which is missing shows.
    found->workspace = found->algorithm.workspace = preference.workspace >= 4096 ? 4096 : 0;
    memcpy(found->algorithm.alignment, preference.alignment, sizeof preference.alignment);
    // "Routines that don't dereference this pointer depend on its value to determine expected
    // pointer alignment" (cublasLt.h).
    found->algorithm.bias = alignment_of(product.bias);
    found->algorithm.aux = alignment_of(product.aux);
    *count = 1;
    return LT_OK;
}
static float gelu(float x) {
    return 0.5f * x * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
API int cublasLtMatmul(void *h, void *ov, const float *alpha, const void *a, void *av,
                       const void *b, void *bv, const float *beta, const void *c, void *cv, void *d,
                       void *dv, const Algorithm *algorithm, void *workspace, size_t bytes,
                       void *stream) {
    if (!h) return LT_NOT_INIT;
    const Product o = *(Product *)ov;
    const Layout la = *(Layout *)av, lb = *(Layout *)bv, lc = *(Layout *)cv, ld = *(Layout *)dv;
    if (int code = check(o, la, lb, lc, ld)) return code;
    Stream *s = stream_of(stream);
    if (!s) return LT_NOT_INIT;
    if (s->ctx->error) return LT_FAILED;
    count_call(Call::BLAS);
    if (algorithm) {
        auto &promised = algorithm->alignment;
        bool aligned = alignment_of(a) >= promised[0] && alignment_of(b) >= promised[1] &&
                       alignment_of(c) >= promised[2] && alignment_of(d) >= promised[3] &&
                       (!o.has(BIAS) || alignment_of(o.bias) >= algorithm->bias) &&
                       (!o.has(AUX) || alignment_of(o.aux) >= algorithm->aux);
        if (!aligned) {
            say("cublasLtMatmul: an address is not aligned as its algorithm needs it");
            return LT_INVALID;
        }
        if (bytes < algorithm->workspace) {
            say("cublasLtMatmul: the workspace is too small");
            return LT_INVALID;
        }
    }
    if (bytes && (!is_device((devptr)workspace, bytes) || (uintptr_t)workspace % 16)) {
        say("cublasLtMatmul: the workspace is outside of an allocation");
        return LT_INVALID;
    }
    bool reads = is_device((devptr)a, la.bytes()) && is_device((devptr)b, lb.bytes()) &&
                 (*beta == 0 || is_device((devptr)c, lc.bytes()));
    size_t bias_size = size_of(o.bias_type_for(ld)) * ld.rows;
    if (!reads || (o.has(BIAS) && !is_device((devptr)o.bias, bias_size))) {
        say("cublasLtMatmul reads outside of an allocation");
        return LT_INVALID;
    }
    const Layout aux{ld.type, ld.rows, ld.cols, o.aux_ld};
    if (!is_device((devptr)d, ld.bytes()) ||
        (o.has(AUX) && (!is_device((devptr)o.aux, aux.bytes()) || (uintptr_t)o.aux % 16))) {
        say("cublasLtMatmul writes outside of an allocation");
        return LT_INVALID;
    }
    if (*beta != 0 && c != d) {
        say("cublasLtMatmul: another matrix C than D is missing");
        return LT_NOT_SUPPORTED;
    }
    Gemm g{o.ta, o.tb, (int)ld.rows, (int)ld.cols, (int)(o.ta ? la.rows : la.cols)};
    g.at = la.type, g.lda = (int)la.ld;
    g.bt = lb.type, g.ldb = (int)lb.ld;
    g.ct = ld.type, g.ldc = (int)ld.ld;
    g.tf32 = o.compute == COMPUTE_32F_TF32;
    TRACE("cublasLtMatmul %d x %d x %d, epilogue %u", g.m, g.n, g.k, o.epilogue);
    float x = *alpha, y = *beta;
    enqueue(s, [=] {
        Turn turn(s->ctx->device);
        gemm<float>(g, x, y, a, b, d, [=](float v, size_t i, size_t j) {
            if (o.has(BIAS)) v += get<float>(o.bias, o.bias_type_for(ld), i);
            if (o.has(AUX)) put<float>(o.aux, ld.type, i + j * o.aux_ld, v);
            if (o.has(RELU)) return v <= 0 ? 0.0f : v; // NaN stays NaN
            return o.has(GELU) ? gelu(v) : v;
        });
        // Nothing reads the workspace, but an algorithm may write there.
        memset(workspace, 0xff, bytes);
    });
    return LT_OK;
}
