// The mathematical functions of kernels. bin/nvcc leads calls of the host's library here: a result
// that is no number is a GPU's NaN, and with SOFTGPU_NOISE the last bits of a result are others.
#include "noise.h"
#include <cmath>

// At most so many units in the last place: the largest error that CUDA's guide gives for most of
// these functions.
const int MOST_ULP = 2;
// The results of functions that never exceed 1.
const double ONE = 1, UNLIMITED = HUGE_VAL;

template <class T> static T changed(T x, T argument, double limit) {
    if (x != x) return softgpu_one_nan(x);
    // A GPU's results at 0 and at infinity, its zeros and its infinities are exact, too. So are the
    // ends of a function's range, where it has come to rest: 1 + erf(-9) is 0.
    if (!noise() || argument == 0 || std::isinf(argument) || x == 0 || std::isinf(x)) return x;
    if (std::abs(x) == limit) return x;
    uint64_t bits = 0;
    memcpy(&bits, &argument, sizeof argument);
    int ulp = (int)(noise_of(bits) % (2 * MOST_ULP + 1)) - MOST_ULP;
    T y = x;
    for (int i = 0; i < std::abs(ulp); i++) y = std::nextafter(y, ulp < 0 ? T(0) : x * INFINITY);
    if (y == 0 || std::isinf(y)) return x;
    return std::abs(y) > limit ? x : y;
}

#define FUNCTION(name, limit)                                                                      \
    API double softgpu_##name(double x) { return changed<double>(name(x), x, limit); }             \
    API float softgpu_##name##f(float x) { return changed<float>(name##f(x), x, limit); }
FUNCTION(exp, UNLIMITED)
FUNCTION(exp2, UNLIMITED)
FUNCTION(exp10, UNLIMITED)
FUNCTION(expm1, UNLIMITED)
FUNCTION(log, UNLIMITED)
FUNCTION(log2, UNLIMITED)
FUNCTION(log10, UNLIMITED)
FUNCTION(log1p, UNLIMITED)
FUNCTION(tanh, ONE)
FUNCTION(sinh, UNLIMITED)
FUNCTION(cosh, UNLIMITED)
FUNCTION(sin, ONE)
FUNCTION(cos, ONE)
FUNCTION(tan, UNLIMITED)
FUNCTION(erf, ONE)
FUNCTION(erfc, 2.0)
API double softgpu_pow(double x, double y) { return changed(pow(x, y), x, UNLIMITED); }
API float softgpu_powf(float x, float y) { return changed(powf(x, y), x, UNLIMITED); }
API float softgpu_rsqrtf(float x) { return changed(1.0f / sqrtf(x), x, UNLIMITED); }
// g++ makes one call of a sine and a cosine of the same number.
API void softgpu_sincos(double x, double *s, double *c) {
    *s = softgpu_sin(x);
    *c = softgpu_cos(x);
}
API void softgpu_sincosf(float x, float *s, float *c) {
    *s = softgpu_sinf(x);
    *c = softgpu_cosf(x);
}

// These are exact or rounded once on both.
API float softgpu_fmodf(float x, float y) { return softgpu_one_nan(fmodf(x, y)); }
API float softgpu_fmaxf(float x, float y) { return softgpu_one_nan(fmaxf(x, y)); }
API float softgpu_fminf(float x, float y) { return softgpu_one_nan(fminf(x, y)); }
API float softgpu_fmaf(float x, float y, float z) { return softgpu_one_nan(fmaf(x, y, z)); }
