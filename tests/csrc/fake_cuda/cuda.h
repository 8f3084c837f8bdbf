#pragma once

// As much of the CUDA driver as the library calls, over the memory of fake_cuda's devices.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_runtime_api.h"

using CUdeviceptr = unsigned long long;
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_SUPPORTED = 801 };
enum CUmemRangeHandleType { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };

// From now on the pages of this memory are those of a file, which others can map.
inline CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, std::size_t bytes,
                                              CUmemRangeHandleType, unsigned long long) {
  auto* const memory = reinterpret_cast<void*>(address);
  const bool fits = address % fake_cuda::kPage == 0 && bytes % fake_cuda::kPage == 0;
  if (!fits || fake_cuda::result_of("cuMemGetHandleForAddressRange") != cudaSuccess)
    return CUDA_ERROR_NOT_SUPPORTED;
  const int file = ::memfd_create("lamina-fhbn-emulated-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const bool made = file >= 0 && ::write(file, memory, bytes) == static_cast<ssize_t>(bytes) &&
                    ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
                    ::mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == memory;
  if (!made) {
    if (file >= 0) ::close(file);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  *static_cast<int*>(handle) = file;
  return CUDA_SUCCESS;
}

inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** match, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult*) {
  *match = reinterpret_cast<void*>(&cuMemGetHandleForAddressRange);
  return fake_cuda::result_of("cudaGetDriverEntryPointByVersion");
}
