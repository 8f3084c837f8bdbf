#include "cuda/library.h"
#include "cuda/runtime.hpp"

namespace lamina::cuda {

std::string& message() {
  thread_local std::string sentence;
  return sentence;
}

void check(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // otherwise the next caller's cudaGetLastError would return it
  const bool no_device = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                         error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDevice;
  if (no_device) {
    throw Failure{LAMINA_CUDA_NO_DEVICE,
                  std::string("there is no CUDA device that can be used: ") + cudaGetErrorString(error)};
  }
  throw Failure{LAMINA_CUDA_FAILED,
                std::string("CUDA failed at ") + doing + ": " + cudaGetErrorString(error)};
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "asking for the device's properties");
  return value;
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  return device;
}

void require_device() {
  const int device = current_device();
  if (attribute(cudaDevAttrComputeCapabilityMajor, device) < 8) {
    throw Failure{LAMINA_CUDA_NO_DEVICE,
                  "this GPU is older than what the kernels are made for: sm_80 (A100) or newer is needed"};
  }
}

}  // namespace lamina::cuda

const char* lamina_cuda_message(void) { return lamina::cuda::message().c_str(); }

lamina_cuda_status lamina_cuda_check_device(void) {
  return lamina::cuda::guarded([] { lamina::cuda::require_device(); });
}
