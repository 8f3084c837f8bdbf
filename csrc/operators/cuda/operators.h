#ifndef LAMINA_OPERATORS_CUDA_OPERATORS_H
#define LAMINA_OPERATORS_CUDA_OPERATORS_H

#include <stddef.h>
#include <stdint.h>

#include "attention/cuda/decode.h"
#include "cuda/library.h"

// What lies between a slice's matrix products on an NVIDIA GPU, as in operators/kernels.hpp for a CPU: a
// few of torch's operators in one kernel, each step rounded as torch rounds it. Sums are added up in an order
// of their own.
//
// Calls put work on a stream and return; all can be captured in a graph. Pointers are to device memory and
// aligned to 16 bytes; distances between rows are bytes, multiples of 16. Rows begin at `rows` distances from
// each other.

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct {
  int32_t dtype;  // lamina_cuda_dtype
  int32_t width;  // of a row: a multiple of 16 bytes, at most 32,768
  float eps;
  int32_t centred;       // of x - mean(x)
  int32_t rounds_first;  // to dtype before the weight
  int32_t wide_weight;   // which is float32 whatever the dtype
} lamina_cuda_norm_shape;

typedef struct {
  int32_t dtype;
  int32_t heads;
  int32_t head_dim;
  int32_t rotated;      // even
  int32_t pairs;        // neighbours are rotated into each other, else halves
  int32_t interleaved;  // which lie number by number in turn in x
  int32_t half_tables;  // with one number for both halves
  int32_t wide;         // nothing is rounded before the sum
  int32_t wide_tables;  // cos and sin are float32
} lamina_cuda_rotary_shape;

typedef enum {
  LAMINA_CUDA_SILU = 0,
  LAMINA_CUDA_GELU = 1,
  LAMINA_CUDA_GELU_TANH = 2,
  LAMINA_CUDA_RELU = 3
} lamina_cuda_activation;

// x / sqrt(mean(x^2) + eps) x weight over rows that lie densely in blocks of `block_rows`. With `added`, of x
// + added, rows that all lie densely, which goes to `sum`. `weight` may be null.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_norm(const lamina_cuda_norm_shape* shape, const void* x,
                                                    int64_t block_rows, int64_t block_stride,
                                                    const void* added, void* sum, const void* weight,
                                                    void* out, int64_t rows, lamina_cuda_stream stream);

// x cos + rotated(x) sin over the first numbers of each head; those behind them are copied. These distances
// may be any.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_rotary(const lamina_cuda_rotary_shape* shape, const void* x,
                                                      int64_t head_stride, int64_t row_stride,
                                                      const void* cos, const void* sin, int64_t table_stride,
                                                      void* out, int64_t rows, lamina_cuda_stream stream);

// activation(gate) x up, of 16-bit numbers.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_gate(int32_t dtype, int32_t activation, const void* gate,
                                                    int64_t gate_stride, const void* up, int64_t up_stride,
                                                    void* out, int64_t rows, int64_t width,
                                                    lamina_cuda_stream stream);

#if defined(__cplusplus)
}
#endif

#endif
