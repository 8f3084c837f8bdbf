#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "cuda/failure.hpp"

// What the library's functions ask of the CUDA runtime, and how they answer.
namespace lamina::cuda {

// What lamina_cuda_message() returns to this thread.
std::string& message();

void check(cudaError_t error, const char* doing);
int current_device();
int attribute(cudaDeviceAttr which, int device);
void require_device();

// Runs what a C function is to do; nothing it throws gets out.
template <typename Do>
lamina_cuda_status guarded(Do&& work) {
  try {
    work();
    message().clear();
    return LAMINA_CUDA_OK;
  } catch (const Failure& failure) {
    message() = failure.sentence;
    return failure.status;
  } catch (const std::exception& error) {
    message() = std::string("out of memory on the host, perhaps: ") + error.what();
    return LAMINA_CUDA_FAILED;
  }
}

// Behind all that is on the stream, whole: no kernel here waits by itself for the one before, as programmatic
// dependent launch would want it to (fhbn/cuda/README.md).
template <typename Args>
void launch(const void* entry, dim3 grid, int threads, int shared_bytes, cudaStream_t stream,
            const Args& args, const char* name) {
  void* pointers[] = {const_cast<Args*>(&args)};
  check(cudaLaunchKernel(entry, grid, dim3(static_cast<unsigned>(threads)), pointers,
                         static_cast<std::size_t>(shared_bytes), stream),
        name);
}

inline dim3 grid_of(std::int64_t x, std::int64_t y = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), 1};
}

}  // namespace lamina::cuda
