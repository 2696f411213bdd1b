// libcudnn's convolutions, forward and both backward, in two dimensions (one is two with a 1): one
// matrix product for each image and group.
#include "alignment.h"
#include "counts.h"
#include "gemm.h"
#include "memory.h"
#include "turns.h"

enum { DNN_OK = 0, BAD_PARAM = 2000, DNN_UNSUPPORTED = 3000, DNN_FAILED = 5000 };
enum { F32 = 0, F64 = 1, F16 = 2, BF16 = 9 };
const int FMA_MATH = 3; // the only math that does not permit TF32
struct Dnn {
    void *stream = nullptr;
};
struct Desc {
    int type = 0, nd = 0;
    long d[8] = {}, s[8] = {};
};
struct Conv {
    int nd = 0, pad[6] = {}, stride[6] = {}, dilation[6] = {}, groups = 1, mode = 0, type = 0,
        math = 0;
};
API int cudnnCreate(void **h) {
    *h = new Dnn;
    return DNN_OK;
}
API int cudnnDestroy(void *h) {
    delete (Dnn *)h;
    return DNN_OK;
}
API int cudnnSetStream(void *h, void *s) {
    ((Dnn *)h)->stream = s;
    return DNN_OK;
}
API size_t cudnnGetVersion() { return 91900; }
API int cudnnCreateTensorDescriptor(void **d) {
    *d = new Desc;
    return DNN_OK;
}
API int cudnnDestroyTensorDescriptor(void *d) {
    delete (Desc *)d;
    return DNN_OK;
}
API int cudnnCreateFilterDescriptor(void **d) {
    *d = new Desc;
    return DNN_OK;
}
API int cudnnDestroyFilterDescriptor(void *d) {
    delete (Desc *)d;
    return DNN_OK;
}
API int cudnnCreateConvolutionDescriptor(void **d) {
    *d = new Conv;
    return DNN_OK;
}
API int cudnnDestroyConvolutionDescriptor(void *d) {
    delete (Conv *)d;
    return DNN_OK;
}
static void dense(Desc &d) {
    long s = 1;
    for (int i = d.nd - 1; i >= 0; i--) {
        d.s[i] = s;
        s *= d.d[i];
    }
}
API int cudnnSetTensorNdDescriptor(void *v, int type, int nd, const int *dims, const int *strides) {
    auto &d = *(Desc *)v;
    if (nd < 4 || nd > 8) return nd == 3 ? (int)DNN_UNSUPPORTED : (int)BAD_PARAM;
    d.type = type;
    d.nd = nd;
    for (int i = 0; i < nd; i++) {
        d.d[i] = dims[i];
        d.s[i] = strides[i];
    }
    return DNN_OK;
}
API int cudnnSetTensor4dDescriptorEx(void *v, int type, int n, int c, int h, int w, int sn, int sc,
                                     int sh, int sw) {
    int d[] = {n, c, h, w}, s[] = {sn, sc, sh, sw};
    return cudnnSetTensorNdDescriptor(v, type, 4, d, s);
}
API int cudnnSetTensor4dDescriptor(void *v, int format, int type, int n, int c, int h, int w) {
    if (format == 0)
        return cudnnSetTensor4dDescriptorEx(v, type, n, c, h, w, c * h * w, h * w, w, 1);
    if (format == 1)
        return cudnnSetTensor4dDescriptorEx(v, type, n, c, h, w, c * h * w, 1, w * c, c);
    return DNN_UNSUPPORTED;
}
API int cudnnSetFilterNdDescriptor(void *v, int type, int format, int nd, const int *dims) {
    auto &d = *(Desc *)v;
    if (nd < 3 || nd > 8) return BAD_PARAM;
    if (format > 1) return DNN_UNSUPPORTED;
    d.type = type;
    d.nd = nd;
    for (int i = 0; i < nd; i++) d.d[i] = dims[i];
    dense(d);
    if (format == 1 && nd == 4) {
        d.s[1] = 1;
        d.s[3] = d.d[1];
        d.s[2] = d.d[1] * d.d[3];
        d.s[0] = d.d[1] * d.d[2] * d.d[3];
    }
    return DNN_OK;
}
API int cudnnSetFilter4dDescriptor(void *v, int type, int format, int k, int c, int h, int w) {
    int d[] = {k, c, h, w};
    return cudnnSetFilterNdDescriptor(v, type, format, 4, d);
}
API int cudnnSetConvolutionNdDescriptor(void *v, int nd, const int *pad, const int *stride,
                                        const int *dilation, int mode, int type) {
    auto &c = *(Conv *)v;
    c.nd = nd;
    c.mode = mode;
    c.type = type;
    for (int i = 0; i < nd; i++) {
        c.pad[i] = pad[i];
        c.stride[i] = stride[i];
        c.dilation[i] = dilation[i];
    }
    return DNN_OK;
}
API int cudnnSetConvolution2dDescriptor(void *v, int ph, int pw, int sh, int sw, int dh, int dw,
                                        int mode, int type) {
    int p[] = {ph, pw}, s[] = {sh, sw}, d[] = {dh, dw};
    return cudnnSetConvolutionNdDescriptor(v, 2, p, s, d, mode, type);
}
API int cudnnSetConvolutionGroupCount(void *v, int n) {
    ((Conv *)v)->groups = n;
    return DNN_OK;
}
API int cudnnSetConvolutionMathType(void *v, int m) {
    ((Conv *)v)->math = m;
    return DNN_OK;
}
struct Perf {
    int algo, status;
    float time;
    size_t memory;
    int determinism, math, reserved[3];
};
const int FASTEST = 0, GENERAL = 1;
static int best(int most, int *n, Perf *p) {
    if (most < 1) return BAD_PARAM;
    *n = 0;
    for (int algorithm : {FASTEST, GENERAL}) {
        if (*n == most) break;
        p[*n] = Perf{};
        p[*n].algo = algorithm;
        p[(*n)++].determinism = 1;
    }
    return DNN_OK;
}
// The patches of one image and group: what the matrix products need beside the tensors.
static size_t workspace(const Desc &W, const Desc &Y) {
    return W.d[1] * W.d[2] * W.d[3] * Y.d[2] * Y.d[3] * (Y.type == F64 ? 8 : 4);
}
#define CHOOSE(what, first, second, third)                                                         \
    API int cudnnGetConvolution##what##Algorithm_v7(void *, void *, void *, void *, void *,        \
                                                    int most, int *n, Perf *p) {                   \
        return best(most, n, p);                                                                   \
    }                                                                                              \
    API int cudnnGetConvolution##what##WorkspaceSize(void *, Desc *first, Desc *second, Conv *,    \
                                                     Desc *third, int algorithm, size_t *n) {      \
        if (algorithm == FASTEST && env("SOFTGPU_DNN_REFUSES", 0)) return DNN_UNSUPPORTED;         \
        *n = workspace(*w, *y);                                                                    \
        return DNN_OK;                                                                             \
    }
CHOOSE(Forward, x, w, y)
CHOOSE(BackwardData, w, y, x)
CHOOSE(BackwardFilter, x, y, w)

template <class A> static A at(const void *p, int type, size_t i) {
    switch (type) {
    case F64: return (A)((const double *)p)[i];
    case F16: return (A)(float)((const __half *)p)[i];
    case BF16: return (A)(float)((const __nv_bfloat16 *)p)[i];
    }
    return (A)((const float *)p)[i];
}
template <class A> static void set(void *p, int type, size_t i, A v) {
    switch (type) {
    case F64: ((double *)p)[i] = v; break;
    case F16: ((__half *)p)[i] = __half(v); break;
    case BF16: ((__nv_bfloat16 *)p)[i] = __nv_bfloat16(v); break;
    default: ((float *)p)[i] = softgpu_one_nan((float)v);
    }
}
static size_t span(const Desc &d) {
    size_t n = 1;
    for (int i = 0; i < d.nd; i++) n += (d.d[i] - 1) * d.s[i];
    return n * (d.type == F64 ? 8 : d.type == F32 ? 4 : 2);
}
// The numbers of a tensor one after the other.
template <class A> static std::vector<A> packed(const void *p, const Desc &d) {
    Desc without_gaps = d;
    dense(without_gaps);
    if (d.type == (sizeof(A) == 8 ? F64 : F32) && std::equal(d.s, d.s + d.nd, without_gaps.s))
        return {(const A *)p, (const A *)p + d.d[0] * d.d[1] * d.d[2] * d.d[3]};
    std::vector<A> to;
    to.reserve(d.d[0] * d.d[1] * d.d[2] * d.d[3]);
    for (long a = 0; a < d.d[0]; a++)
        for (long b = 0; b < d.d[1]; b++)
            for (long e = 0; e < d.d[2]; e++)
                for (long f = 0; f < d.d[3]; f++)
                    to.push_back(
                        at<A>(p, d.type, a * d.s[0] + b * d.s[1] + e * d.s[2] + f * d.s[3]));
    return to;
}
// out = alpha * values + beta * out
template <class A>
static void unpack(const std::vector<A> &values, A alpha, A beta, void *out, const Desc &d) {
    const A *next = values.data();
    for (long a = 0; a < d.d[0]; a++)
        for (long b = 0; b < d.d[1]; b++)
            for (long e = 0; e < d.d[2]; e++)
                for (long f = 0; f < d.d[3]; f++) {
                    size_t i = a * d.s[0] + b * d.s[1] + e * d.s[2] + f * d.s[3];
                    A v = alpha * *next++;
                    if (beta != 0) v += beta * at<A>(out, d.type, i);
                    set<A>(out, d.type, i, v);
                }
}
template <class A> static void transpose(const A *from, A *to, size_t rows, size_t columns) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
}
// Calls f(row, column, pixel) for every element of the patches of some channels: a row for each
// element of the filter, a column for each place of the result, and the place of the pixel, or -1
// in the padding.
template <class F>
static void patches(const Desc &X, const Desc &W, const Desc &Y, const Conv &c, F f) {
    for (long ci = 0, row = 0; ci < W.d[1]; ci++)
        for (long r = 0; r < W.d[2]; r++)
            for (long s = 0; s < W.d[3]; s++, row++) {
                // cross-correlation, or with the filter turned
                long fr = c.mode == 1 ? r : W.d[2] - 1 - r, fs = c.mode == 1 ? s : W.d[3] - 1 - s;
                for (long i = 0, column = 0; i < Y.d[2]; i++) {
                    long h = i * c.stride[0] - c.pad[0] + fr * c.dilation[0];
                    bool inside = h >= 0 && h < X.d[2];
                    for (long j = 0; j < Y.d[3]; j++, column++) {
                        long v = j * c.stride[1] - c.pad[1] + fs * c.dilation[1];
                        f(row, column,
                          inside && v >= 0 && v < X.d[3] ? (ci * X.d[2] + h) * X.d[3] + v : -1L);
                    }
                }
            }
}
// out = alpha * (x convolved with w, by what is asked for) + beta * out
template <class A> static void convolve(int what, A alpha, A beta, const Desc &X, const Desc &W,
                                        const Desc &Y, const Conv &c, const void *x, const void *w,
                                        const void *y, void *out, A *patch) {
    const Desc &O = what == 0 ? Y : what == 1 ? X : W;
    const size_t groups = c.groups, outputs = W.d[0] / groups, pixels = Y.d[2] * Y.d[3],
                 size = W.d[1] * W.d[2] * W.d[3], in = W.d[1] * X.d[2] * X.d[3];
    std::vector<A> xs, ws, ys, turned(what == 1 ? outputs * size : 0),
        result(O.d[0] * O.d[1] * O.d[2] * O.d[3]);
    if (what != 1) xs = packed<A>(x, X);
    if (what != 2) ws = packed<A>(w, W);
    if (what != 0) ys = packed<A>(y, Y);
    if (X.type == F32 && (c.math != FMA_MATH || every_product_in_tf32()))
        for (auto *factors : {&xs, &ws, &ys})
            for (A &factor : *factors) factor = to_tf32((float)factor);
    for (size_t g = 0; g < groups; g++) {
        if (what == 1) transpose(&ws[g * outputs * size], turned.data(), outputs, size);
        for (long n = 0; n < Y.d[0]; n++) {
            size_t image = (n * groups + g) * in, place = (n * groups + g) * outputs * pixels;
            switch (what) {
            case 0:
                patches(X, W, Y, c, [&](size_t row, size_t column, long pixel) {
                    patch[row * pixels + column] = pixel < 0 ? A(0) : xs[image + pixel];
                });
                product(outputs, pixels, size, &ws[g * outputs * size], patch, &result[place],
                        false);
                break;
            case 1:
                product(size, pixels, outputs, turned.data(), &ys[place], patch, false);
                patches(X, W, Y, c, [&](size_t row, size_t column, long pixel) {
                    if (pixel >= 0) result[image + pixel] += patch[row * pixels + column];
                });
                break;
            case 2:
                patches(X, W, Y, c, [&](size_t row, size_t column, long pixel) {
                    patch[column * size + row] = pixel < 0 ? A(0) : xs[image + pixel];
                });
                product(outputs, size, pixels, &ys[place], patch, &result[g * outputs * size],
                        true);
            }
        }
    }
    unpack(result, alpha, beta, out, O);
}
static int start(void *h, int what, const void *alpha, const void *beta, const Desc *X,
                 const Desc *W, const Desc *Y, const Conv *c, const void *x, const void *w,
                 const void *y, void *out, void *space, size_t bytes) {
    if (X->nd != 4 || W->nd != 4 || Y->nd != 4) return DNN_UNSUPPORTED;
    if (X->type != W->type || X->type != Y->type || X->d[1] != W->d[1] * c->groups ||
        Y->d[1] != W->d[0] || X->d[0] != Y->d[0] || W->d[0] % c->groups)
        return BAD_PARAM;
    for (int i = 0; i < 2; i++)
        if (Y->d[2 + i] !=
            (X->d[2 + i] + 2 * c->pad[i] - c->dilation[i] * (W->d[2 + i] - 1) - 1) / c->stride[i] +
                1)
            return BAD_PARAM;
    auto there = [](const void *p, const Desc *d) { return is_device((devptr)p, span(*d)); };
    if ((what != 1 && !there(x, X)) || (what != 2 && !there(w, W)) || (what != 0 && !there(y, Y)) ||
        !there(out, what == 0   ? Y
                    : what == 1 ? X
                                : W)) {
        say("convolution outside of an allocation");
        return BAD_PARAM;
    }
    size_t needed = workspace(*W, *Y);
    if (bytes < needed || !is_device((devptr)space, needed)) {
        say("convolution with a workspace of %zu bytes, it needs %zu on the device", bytes, needed);
        return BAD_PARAM;
    }
    Stream *s = stream_of(((Dnn *)h)->stream);
    if (!s) return 1001;
    if (s->ctx->error) return DNN_FAILED;
    count_call(Call::DNN);
    // These calls cannot be told an alignment, so the algorithm that is advised may need any.
    static const char *const CALLS[] = {"cudnnConvolutionForward", "cudnnConvolutionBackwardData",
                                        "cudnnConvolutionBackwardFilter"};
    const std::pair<const char *, const void *> operands[] = {
        {"x", x}, {"w", w}, {"y", y}, {"the result", out}, {"the workspace", space}};
    for (auto [operand, address] : operands)
        if (misaligned(s, CALLS[what], operand, address, 16)) return DNN_FAILED;
    bool wide = X->type == F64;
    double a = wide ? *(double *)alpha : *(float *)alpha,
           b = wide ? *(double *)beta : *(float *)beta;
    enqueue(s, [=, X = *X, W = *W, Y = *Y, c = *c] {
        Turn turn(s->ctx->device);
        if (wide)
            convolve<double>(what, a, b, X, W, Y, c, x, w, y, out, (double *)space);
        else
            convolve<float>(what, (float)a, (float)b, X, W, Y, c, x, w, y, out, (float *)space);
    });
    return DNN_OK;
}
API int cudnnConvolutionForward(void *h, const void *alpha, Desc *xd, const void *x, Desc *wd,
                                const void *w, Conv *c, int, void *space, size_t bytes,
                                const void *beta, Desc *yd, void *y) {
    return start(h, 0, alpha, beta, xd, wd, yd, c, x, w, nullptr, y, space, bytes);
}
API int cudnnConvolutionBackwardData(void *h, const void *alpha, Desc *wd, const void *w, Desc *yd,
                                     const void *dy, Conv *c, int, void *space, size_t bytes,
                                     const void *beta, Desc *xd, void *dx) {
    return start(h, 1, alpha, beta, xd, wd, yd, c, nullptr, w, dy, dx, space, bytes);
}
API int cudnnConvolutionBackwardFilter(void *h, const void *alpha, Desc *xd, const void *x,
                                       Desc *yd, const void *dy, Conv *c, int, void *space,
                                       size_t bytes, const void *beta, Desc *wd, void *dw) {
    return start(h, 2, alpha, beta, xd, wd, yd, c, x, nullptr, dy, dw, space, bytes);
}
