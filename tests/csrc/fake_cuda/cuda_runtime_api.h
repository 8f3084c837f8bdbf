#pragma once

// As much of the CUDA runtime as the library calls, for a "device" that is the emulation: memory is the
// host's, and a launch runs the kernel to its end (streams.hpp). A test defines work_of() and may let one
// call fail. There are as many devices as anybody asks for.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "streams.hpp"

enum cudaError_t {
  cudaSuccess,
  cudaErrorNoDevice,
  cudaErrorInsufficientDriver,
  cudaErrorNoKernelImageForDevice,
  cudaErrorInvalidDevice,
  cudaErrorStreamCaptureUnsupported,
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
inline constexpr unsigned cudaStreamNonBlocking = 1;
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
using cudaGraph_t = fake_cuda::Graph*;
using cudaGraphExec_t = fake_cuda::Graph*;

namespace fake_cuda {

inline std::string failing;                                 // the call that fails
inline std::map<const std::byte*, std::size_t> registered;  // memory of the host, and how much
inline std::mutex registering;
inline int compute_capability = 9;
inline constexpr int multiprocessors = 3;  // so that sequences are shared out unevenly

struct Launch {
  const void* entry;
  dim3 grid, block;
  void** arguments;
  std::size_t shared_bytes;
};

// With a copy of its arguments, to be done now or whenever a graph is replayed.
Work work_of(const Launch& launch);

inline cudaError_t result_of(const char* call) { return failing == call ? cudaErrorUnknown : cudaSuccess; }

// Of what a stream that is captured cannot do.
inline cudaError_t result_outside_capture(const char* call) {
  return capture.graph != nullptr ? cudaErrorStreamCaptureUnsupported : result_of(call);
}

inline cudaError_t wait_for_device(const char* call) {
  const cudaError_t result = result_outside_capture(call);
  if (result == cudaSuccess) devices.wait_for([](const Running& one) { return one.device == device; });
  return result;
}

inline cudaError_t allocate(const char* call, void** memory, std::size_t bytes) {
  const cudaError_t result = result_outside_capture(call);
  if (result != cudaSuccess) return result;
  *memory = ::operator new(bytes, std::align_val_t(256));
  std::memset(*memory, 0xcc, bytes);  // as the last one left it
  return cudaSuccess;
}

}  // namespace fake_cuda

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "it was asked to"; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = fake_cuda::device;
  return fake_cuda::failing == "cudaGetDevice" ? cudaErrorNoDevice : cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  fake_cuda::device = device;
  return cudaSuccess;
}
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
                                    std::size_t shared_bytes, cudaStream_t stream) {
  if (fake_cuda::failing == "cudaLaunchKernel") return cudaErrorUnknown;
  fake_cuda::put(stream, fake_cuda::work_of({entry, grid, block, arguments, shared_bytes}));
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  // The one that is there from the beginning cannot be captured.
  if (stream == nullptr || fake_cuda::capture.graph != nullptr) return cudaErrorStreamCaptureUnsupported;
  fake_cuda::capture = {stream, std::make_unique<fake_cuda::Graph>()};
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = fake_cuda::capture.graph.release();
  return *graph != nullptr ? cudaSuccess : cudaErrorUnknown;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new fake_cuda::Graph(*graph);
  return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  fake_cuda::devices.run(stream, [graph] {
    for (const fake_cuda::Work& work : *graph) work();
  });
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaGraphDestroy(graph); }
// No byte may be registered twice.
inline cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  const cudaError_t waited = fake_cuda::wait_for_device("cudaHostRegister");
  if (waited != cudaSuccess) return waited;
  if (bytes == 0) return cudaErrorUnknown;
  const std::lock_guard lock(fake_cuda::registering);
  auto* const begin = static_cast<const std::byte*>(memory);
  for (const auto& [first, size] : fake_cuda::registered) {
    if (begin < first + size && first < begin + bytes) return cudaErrorUnknown;
  }
  fake_cuda::registered[begin] = bytes;
  return cudaSuccess;
}
inline cudaError_t cudaHostUnregister(void* memory) {
  const std::lock_guard lock(fake_cuda::registering);
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
  fake_cuda::wait_for_device("cudaFree");
  ::operator delete(memory, std::align_val_t(256));
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return fake_cuda::result_of("cudaMemcpy");
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const cudaError_t result = fake_cuda::result_outside_capture("cudaStreamSynchronize");
  if (result != cudaSuccess) return result;
  fake_cuda::devices.wait_for([stream](const fake_cuda::Running& one) {
    return one.device == fake_cuda::device && one.stream == stream;
  });
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return fake_cuda::wait_for_device("cudaDeviceSynchronize"); }
