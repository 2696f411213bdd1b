// libcudnn's convolutions, forward and both backward, in two dimensions (one is two with a 1):
// plain loops.
#include "memory.h"
#include "streams.h"

enum { DNN_OK = 0, BAD_PARAM = 2000, DNN_UNSUPPORTED = 3000 };
enum { F32 = 0, F64 = 1, F16 = 2, BF16 = 9 };
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
API const char *cudnnGetErrorString(int) { return "softgpu"; }
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
static int best(int *n, Perf *p) {
    *n = 1;
    *p = Perf{};
    p->algo = 1;
    p->determinism = 1;
    return DNN_OK;
}
#define CHOOSE(what)                                                                               \
    API int cudnnGetConvolution##what##Algorithm_v7(void *, void *, void *, void *, void *,        \
                                                    int most, int *n, Perf *p) {                   \
        return most < 1 ? (int)BAD_PARAM : best(n, p);                                             \
    }                                                                                              \
    API int cudnnGetConvolution##what##WorkspaceSize(void *, void *, void *, void *, void *, int,  \
                                                     size_t *n) {                                  \
        *n = 0;                                                                                    \
        return DNN_OK;                                                                             \
    }
CHOOSE(Forward)
CHOOSE(BackwardData)
CHOOSE(BackwardFilter)

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
    default: ((float *)p)[i] = (float)v;
    }
}
static size_t span(const Desc &d) {
    size_t n = 1;
    for (int i = 0; i < d.nd; i++) n += (d.d[i] - 1) * d.s[i];
    return n * (d.type == F64 ? 8 : d.type == F32 ? 4 : 2);
}
// out = alpha * (x convolved with w, by what is asked for) + beta * out
template <class A> static void convolve(int what, A alpha, A beta, const Desc &X, const Desc &W,
                                        const Desc &Y, const Conv &c, const void *x, const void *w,
                                        const void *y, void *out) {
    const Desc &O = what == 0 ? Y : what == 1 ? X : W;
    long cg = W.d[1], kg = W.d[0] / c.groups;
    std::vector<A> sum(O.d[0] * O.d[1] * O.d[2] * O.d[3]);
    auto slot = [&](long a, long b, long e, long f) -> A & {
        return sum[((a * O.d[1] + b) * O.d[2] + e) * O.d[3] + f];
    };
    for (long n = 0; n < Y.d[0]; n++)
        for (long k = 0; k < Y.d[1]; k++)
            for (long i = 0; i < Y.d[2]; i++)
                for (long j = 0; j < Y.d[3]; j++) {
                    A acc = 0, dy = what ? at<A>(y, Y.type,
                                                 n * Y.s[0] + k * Y.s[1] + i * Y.s[2] + j * Y.s[3])
                                         : A(0);
                    for (long ci = 0; ci < cg; ci++)
                        for (long r = 0; r < W.d[2]; r++)
                            for (long s = 0; s < W.d[3]; s++) {
                                long h = i * c.stride[0] - c.pad[0] + r * c.dilation[0],
                                     v = j * c.stride[1] - c.pad[1] + s * c.dilation[1],
                                     ch = k / kg * cg + ci;
                                if (h < 0 || h >= X.d[2] || v < 0 || v >= X.d[3]) continue;
                                long fr = c.mode == 1 ? r : W.d[2] - 1 - r,
                                     fs =
                                         c.mode == 1 ? s : W.d[3] - 1 - s; // cross-correlation, or
                                                                           // with the filter turned
                                size_t xi = n * X.s[0] + ch * X.s[1] + h * X.s[2] + v * X.s[3],
                                       wi = k * W.s[0] + ci * W.s[1] + fr * W.s[2] + fs * W.s[3];
                                if (what == 0)
                                    acc += at<A>(x, X.type, xi) * at<A>(w, W.type, wi);
                                else if (what == 1)
                                    slot(n, ch, h, v) += dy * at<A>(w, W.type, wi);
                                else
                                    slot(k, ci, fr, fs) += dy * at<A>(x, X.type, xi);
                            }
                    if (what == 0) slot(n, k, i, j) = acc;
                }
    for (long a = 0; a < O.d[0]; a++)
        for (long b = 0; b < O.d[1]; b++)
            for (long e = 0; e < O.d[2]; e++)
                for (long f = 0; f < O.d[3]; f++) {
                    size_t i = a * O.s[0] + b * O.s[1] + e * O.s[2] + f * O.s[3];
                    A v = alpha * slot(a, b, e, f);
                    if (beta != 0) v += beta * at<A>(out, O.type, i);
                    set<A>(out, O.type, i, v);
                }
}
static int start(void *h, int what, const void *alpha, const void *beta, const Desc *X,
                 const Desc *W, const Desc *Y, const Conv *c, const void *x, const void *w,
                 const void *y, void *out) {
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
    Stream *s = stream_of(((Dnn *)h)->stream);
    if (!s) return 1001;
    bool wide = X->type == F64;
    double a = wide ? *(double *)alpha : *(float *)alpha,
           b = wide ? *(double *)beta : *(float *)beta;
    enqueue(s, [=, X = *X, W = *W, Y = *Y, c = *c] {
        if (wide)
            convolve<double>(what, a, b, X, W, Y, c, x, w, y, out);
        else
            convolve<float>(what, (float)a, (float)b, X, W, Y, c, x, w, y, out);
    });
    return DNN_OK;
}
API int cudnnConvolutionForward(void *h, const void *alpha, Desc *xd, const void *x, Desc *wd,
                                const void *w, Conv *c, int, void *, size_t, const void *beta,
                                Desc *yd, void *y) {
    return start(h, 0, alpha, beta, xd, wd, yd, c, x, w, nullptr, y);
}
API int cudnnConvolutionBackwardData(void *h, const void *alpha, Desc *wd, const void *w, Desc *yd,
                                     const void *dy, Conv *c, int, void *, size_t, const void *beta,
                                     Desc *xd, void *dx) {
    return start(h, 1, alpha, beta, xd, wd, yd, c, nullptr, w, dy, dx);
}
API int cudnnConvolutionBackwardFilter(void *h, const void *alpha, Desc *xd, const void *x,
                                       Desc *yd, const void *dy, Conv *c, int, void *, size_t,
                                       const void *beta, Desc *wd, void *dw) {
    return start(h, 2, alpha, beta, xd, wd, yd, c, x, nullptr, dy, dw);
}
