#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "attention/cuda/decode.h"

namespace lamina::attention::cuda {

// What a call across the C boundary could not do. Never leaves this library.
struct Failure {
  lamina_cuda_status status;
  std::string sentence;
};

inline void require(bool holds, const char* sentence) {
  if (!holds) throw Failure{LAMINA_CUDA_BAD_ARGUMENT, sentence};
}

inline void check(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the runtime remembers it for somebody else's next question otherwise
  const bool no_device = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                         error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDevice;
  if (no_device) {
    throw Failure{LAMINA_CUDA_NO_DEVICE,
                  std::string("there is no CUDA device that can be used: ") + cudaGetErrorString(error)};
  }
  throw Failure{LAMINA_CUDA_FAILED,
                std::string("CUDA failed at ") + doing + ": " + cudaGetErrorString(error)};
}

}  // namespace lamina::attention::cuda
