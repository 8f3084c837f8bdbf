#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

#include "cuda/runtime.hpp"

namespace lamina::fhbn::cuda {

// Memory of the host pinned for devices to reach, for as long as this lives. The driver takes a page once, so
// it is shared: a ring by two ends over it and by what posts for them, a NIC's page by many queue pairs.
class Pinned {
public:
  // `flags`: besides that any device may reach it.
  Pinned(void* memory, std::size_t bytes, unsigned flags = 0) {
    const std::lock_guard lock(mutex());
    auto* const begin = static_cast<std::byte*>(memory);
    auto behind = ranges().upper_bound(begin);
    if (behind != ranges().begin()) {
      auto& [first, range] = *std::prev(behind);
      if (begin + bytes <= first + range.bytes) {
        begin_ = first;
        ++range.users;
        return;
      }
    }
    lamina::cuda::check(
        cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped | flags),
        "pinning the channel's memory");
    ranges()[begin_ = begin] = {bytes, 1};
  }
  ~Pinned() {
    const std::lock_guard lock(mutex());
    const auto range = ranges().find(begin_);
    if (--range->second.users > 0) return;
    ranges().erase(range);
    cudaHostUnregister(begin_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

private:
  struct Range {
    std::size_t bytes;
    int users;
  };

  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::map<std::byte*, Range>& ranges() {
    static std::map<std::byte*, Range> all;
    return all;
  }

  std::byte* begin_;  // of the range that it is in
};

// Where the device finds memory of the host.
template <typename T>
T* on_device(T* memory) {
  void* address = nullptr;
  lamina::cuda::check(cudaHostGetDevicePointer(&address, memory, 0), "mapping the channel's memory");
  return static_cast<T*>(address);
}

struct FreeHost {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};
struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};
template <typename T>
using HostMemory = std::unique_ptr<T, FreeHost>;
template <typename T>
using DeviceMemory = std::unique_ptr<T, FreeDevice>;

// Memory of the host that any device can reach.
template <typename T>
HostMemory<T> host_memory() {
  void* memory = nullptr;
  lamina::cuda::check(cudaHostAlloc(&memory, sizeof(T), cudaHostAllocPortable | cudaHostAllocMapped),
                      "making a mailbox");
  return HostMemory<T>(static_cast<T*>(memory));
}

template <typename T>
DeviceMemory<T> device_memory() {
  void* memory = nullptr;
  lamina::cuda::check(cudaMalloc(&memory, sizeof(T)), "making a cursor");
  return DeviceMemory<T>(static_cast<T*>(memory));
}

template <typename Kernel>
const void* entry_of(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

}  // namespace lamina::fhbn::cuda
