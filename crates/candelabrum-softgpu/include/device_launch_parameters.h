// Everything is in softgpu.h, which is included before every source.
