// SOFTGPU_NOISE: numbers as another device would compute them, within the errors that its
// documentation permits. Equal arguments give equal results, as on a GPU.
#pragma once
#include "common.h"

bool noise();
// SOFTGPU_TF32: whether the factors of all products in f32 are rounded to TF32.
bool every_product_in_tf32();
// Depends on the argument and on SOFTGPU_SEED. Equal on all ranks, which compare their results.
inline uint64_t noise_of(uint64_t argument) {
    static const uint64_t seed = mix((uint64_t)env("SOFTGPU_SEED", 0));
    return mix(seed ^ mix(argument));
}
