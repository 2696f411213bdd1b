// Labels and indices of type u8, u32 or i64. This text is put before kernels that read them.

#define NOT_A_NUMBER __int_as_float(0x7fc00000)

// Index i of a run whose elements have this size in bytes.
__device__ long long index_at(const void *indices, unsigned long long size, unsigned long long i) {
  switch (size) {
  case 1: return ((const unsigned char *)indices)[i];
  case 4: return ((const unsigned *)indices)[i];
  default: return ((const long long *)indices)[i];
  }
}
