// Numbers of a type that is known at run time only: cuBLAS's and cuDNN's arguments.
#pragma once
#include "common.h"

enum Type { R_32F = 0, R_64F = 1, R_16F = 2, R_8I = 3, R_32I = 10, R_16BF = 14 }; // cudaDataType

inline int size_of(int type) {
    switch (type) {
    case R_32F:
    case R_32I: return 4;
    case R_64F: return 8;
    case R_16F:
    case R_16BF: return 2;
    case R_8I: return 1;
    }
    return 0;
}
template <class A> A get(const void *p, int type, size_t i) {
    switch (type) {
    case R_32F: return (A)((const float *)p)[i];
    case R_64F: return (A)((const double *)p)[i];
    case R_16F: return (A)(float)((const __half *)p)[i];
    case R_16BF: return (A)(float)((const __nv_bfloat16 *)p)[i];
    case R_8I: return (A)((const int8_t *)p)[i];
    case R_32I: return (A)((const int32_t *)p)[i];
    }
    return 0;
}
template <class A> void put(void *p, int type, size_t i, A v) {
    switch (type) {
    case R_32F: ((float *)p)[i] = softgpu_one_nan((float)v); break;
    case R_64F: ((double *)p)[i] = (double)v; break;
    case R_16F: ((__half *)p)[i] = __half(v); break;
    case R_16BF: ((__nv_bfloat16 *)p)[i] = __nv_bfloat16((float)v); break;
    case R_32I: ((int32_t *)p)[i] = (int32_t)v; break;
    }
}
