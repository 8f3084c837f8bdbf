#pragma once

// As much of the CUDA runtime as the library calls, for a "device" that is the emulation: memory is the
// host's, and a launch runs the kernel to its end. A test defines launch() and may let one call fail.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <string>

enum cudaError_t {
  cudaSuccess,
  cudaErrorNoDevice,
  cudaErrorInsufficientDriver,
  cudaErrorNoKernelImageForDevice,
  cudaErrorInvalidDevice,
  cudaErrorUnknown,
};
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMultiProcessorCount,
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributePreferredSharedMemoryCarveout,
};
inline constexpr int cudaSharedmemCarveoutMaxShared = 100;
inline constexpr unsigned cudaMemAttachGlobal = 1;
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
inline constexpr unsigned cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2;
inline constexpr unsigned cudaHostRegisterIoMemory = 4;
inline constexpr unsigned cudaHostAllocPortable = 1, cudaHostAllocMapped = 2;
struct cudaFuncAttributes {};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
using cudaStream_t = struct CUstream_st*;

namespace fake_cuda {

inline std::string failing;                                 // the call that fails
inline std::map<const std::byte*, std::size_t> registered;  // memory of the host, and how much
inline int compute_capability = 9;
inline constexpr int multiprocessors = 3;  // so that sequences are shared out unevenly

struct Launch {
  const void* entry;
  dim3 grid, block;
  void** arguments;
  std::size_t shared_bytes;
};

void launch(const Launch& launch);

inline cudaError_t result_of(const char* call) { return failing == call ? cudaErrorUnknown : cudaSuccess; }

inline cudaError_t allocate(const char* call, void** memory, std::size_t bytes) {
  if (failing == call) return cudaErrorUnknown;
  *memory = ::operator new(bytes, std::align_val_t(256));
  std::memset(*memory, 0xcc, bytes);  // as the last one left it
  return cudaSuccess;
}

}  // namespace fake_cuda

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "it was asked to"; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return fake_cuda::failing == "cudaGetDevice" ? cudaErrorNoDevice : cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  const std::map<cudaDeviceAttr, int> values = {
      {cudaDevAttrComputeCapabilityMajor, fake_cuda::compute_capability},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10},
      {cudaDevAttrMultiProcessorCount, fake_cuda::multiprocessors}};
  *value = values.at(which);
  return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  return fake_cuda::result_of("cudaFuncGetAttributes");
}
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) {
  *blocks = 1;
  return cudaSuccess;
}
inline cudaError_t cudaLaunchKernel(const void* entry, dim3 grid, dim3 block, void** arguments,
                                    std::size_t shared_bytes, cudaStream_t) {
  if (fake_cuda::failing == "cudaLaunchKernel") return cudaErrorUnknown;
  fake_cuda::launch({entry, grid, block, arguments, shared_bytes});
  return cudaSuccess;
}
// No byte may be registered twice.
inline cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  if (fake_cuda::failing == "cudaHostRegister" || bytes == 0) return cudaErrorUnknown;
  auto* const begin = static_cast<const std::byte*>(memory);
  for (const auto& [first, size] : fake_cuda::registered) {
    if (begin < first + size && first < begin + bytes) return cudaErrorUnknown;
  }
  fake_cuda::registered[begin] = bytes;
  return cudaSuccess;
}
inline cudaError_t cudaHostUnregister(void* memory) {
  const bool was = fake_cuda::registered.erase(static_cast<const std::byte*>(memory)) == 1;
  return was ? cudaSuccess : cudaErrorUnknown;
}
inline cudaError_t cudaHostGetDevicePointer(void** device, void* memory, unsigned) {
  *device = memory;
  return fake_cuda::result_of("cudaHostGetDevicePointer");
}
inline cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return fake_cuda::allocate("cudaHostAlloc", memory, bytes);
}
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return fake_cuda::allocate("cudaMalloc", memory, bytes);
}
inline cudaError_t cudaMallocManaged(void** memory, std::size_t bytes, unsigned) {
  return fake_cuda::allocate("cudaMallocManaged", memory, bytes);
}
inline cudaError_t cudaFree(void* memory) {
  ::operator delete(memory, std::align_val_t(256));
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return fake_cuda::result_of("cudaMemcpy");
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return fake_cuda::result_of("cudaDeviceSynchronize"); }
