#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "attention/cuda/attend.cuh"

namespace lamina::attention::cuda {

// One compiled attention kernel, and what a launch of it has to know. Cheap to copy.
struct AttendKernel {
  const void* entry;
  int shared_bytes;
  int heads;   // of a pass
  int tokens;  // of a tile on the line
};

// The kernels for one type of K and V. Each is compiled in a file of its own, so that they compile side by
// side.
struct Kernels {
  AttendKernel (*attend)(int group, int head_dim);
  const void* finish;
  int element_bytes;
};

Kernels kernels_bf16();
Kernels kernels_f16();
Kernels kernels_f32();

}  // namespace lamina::attention::cuda
