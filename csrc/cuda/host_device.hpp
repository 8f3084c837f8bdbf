#pragma once

// Arithmetic that the kernels and the host's tests share is marked LAMINA_HD: nvcc compiles it for both
// sides, and any C++ compiler for the host alone.
#ifdef __CUDACC__
#define LAMINA_HD __host__ __device__ __forceinline__
#else
#define LAMINA_HD inline
#endif
