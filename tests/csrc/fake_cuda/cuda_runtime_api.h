#pragma once

// As much of the CUDA runtime as the library calls, for a "device" that is the emulation: memory is the
// host's, and a launch runs the kernel to its end (streams.hpp). A test defines work_of() and may let one
// call fail. There are as many devices as anybody asks for. What was made as a device's memory is known: it
// can be pinned as little as a device's can, and is copied in the right direction only.

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
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
  cudaDevAttrGPUDirectRDMAWritesOrdering,
};
enum { cudaGPUDirectRDMAWritesOrderingNone = 0, cudaGPUDirectRDMAWritesOrderingOwner = 100 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
inline constexpr unsigned long long cudaEnableDefault = 0;
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributePreferredSharedMemoryCarveout,
};
inline constexpr int cudaSharedmemCarveoutMaxShared = 100;
inline constexpr unsigned cudaMemAttachGlobal = 1;
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDefault };
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
inline std::map<const std::byte*, std::size_t> of_devices;  // their memory, and how much
inline std::map<const void*, int> carveouts;                // that kernels ask for
inline std::mutex registering;
inline int rdma_writes_ordering = cudaGPUDirectRDMAWritesOrderingOwner;
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

// Of a device what is larger than this has pages of its own, which can be handed out as a file (cuda.h).
inline constexpr std::size_t kPage = 4096;

inline bool overlaps(const std::map<const std::byte*, std::size_t>& ranges, const void* memory,
                     std::size_t bytes) {
  const std::lock_guard lock(registering);
  auto* const begin = static_cast<const std::byte*>(memory);
  const auto behind = ranges.lower_bound(begin + bytes);
  return behind != ranges.begin() && begin < std::prev(behind)->first + std::prev(behind)->second;
}

// Word by word, as what others write meanwhile is copied by a device.
inline void copy(void* to, const void* from, std::size_t bytes) {
  const auto is_word = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 4 == 0; };
  if (!is_word(to) || !is_word(from) || bytes % 4 != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  auto* const words = static_cast<std::uint32_t*>(const_cast<void*>(from));
  for (std::size_t i = 0; i < bytes / 4; ++i) {
    static_cast<std::uint32_t*>(to)[i] =
        std::atomic_ref<std::uint32_t>(words[i]).load(std::memory_order_relaxed);
  }
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
      {cudaDevAttrMultiProcessorCount, fake_cuda::multiprocessors},
      {cudaDevAttrGPUDirectRDMAWritesOrdering, fake_cuda::rdma_writes_ordering}};
  *value = values.at(which);
  return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  return fake_cuda::result_of("cudaFuncGetAttributes");
}
inline cudaError_t cudaFuncSetAttribute(const void* entry, cudaFuncAttribute which, int value) {
  const std::lock_guard lock(fake_cuda::registering);
  if (which == cudaFuncAttributePreferredSharedMemoryCarveout) fake_cuda::carveouts[entry] = value;
  return cudaSuccess;
}
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
  const bool is_taken = fake_cuda::overlaps(fake_cuda::registered, memory, bytes) ||
                        fake_cuda::overlaps(fake_cuda::of_devices, memory, bytes);
  if (bytes == 0 || is_taken) return cudaErrorUnknown;
  const std::lock_guard lock(fake_cuda::registering);
  fake_cuda::registered[static_cast<const std::byte*>(memory)] = bytes;
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
  cudaError_t result = fake_cuda::result_outside_capture("cudaMalloc");
  if (result != cudaSuccess) return result;
  if (bytes <= fake_cuda::kPage) {
    result = fake_cuda::allocate("cudaMalloc", memory, bytes);
  } else {
    *memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*memory == MAP_FAILED) return cudaErrorUnknown;
  }
  const std::lock_guard lock(fake_cuda::registering);
  fake_cuda::of_devices[static_cast<std::byte*>(*memory)] = bytes;
  return result;
}
inline cudaError_t cudaMallocManaged(void** memory, std::size_t bytes, unsigned) {
  return fake_cuda::allocate("cudaMallocManaged", memory, bytes);
}
inline cudaError_t cudaFree(void* memory) {
  fake_cuda::wait_for_device("cudaFree");
  std::unique_lock lock(fake_cuda::registering);
  const auto known = fake_cuda::of_devices.find(static_cast<std::byte*>(memory));
  const std::size_t bytes = known == fake_cuda::of_devices.end() ? 0 : known->second;
  if (bytes > 0) fake_cuda::of_devices.erase(known);
  lock.unlock();
  if (bytes > fake_cuda::kPage) {
    ::munmap(memory, bytes);
  } else {
    ::operator delete(memory, std::align_val_t(256));
  }
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const auto is_devices = [bytes](const void* memory) {
    return fake_cuda::overlaps(fake_cuda::of_devices, memory, bytes);
  };
  const bool to_device = kind == cudaMemcpyHostToDevice;
  if (kind != cudaMemcpyDefault && (is_devices(to) != to_device || is_devices(from) == to_device)) {
    return cudaErrorUnknown;
  }
  fake_cuda::copy(to, from, bytes);
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
