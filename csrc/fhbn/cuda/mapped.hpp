#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <mutex>

#include "cuda/runtime.hpp"

namespace lamina::fhbn::cuda {

// Memory of the host pinned for devices to reach, for as long as this lives. The driver takes a range once;
// two ends over one ring share it.
class Pinned {
public:
  // `flags`: besides that any device may reach it.
  Pinned(void* memory, std::size_t bytes, unsigned flags = 0) : memory_(memory) {
    const std::lock_guard lock(mutex());
    if (users()[memory]++ > 0) return;
    const auto error =
        cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped | flags);
    if (error == cudaSuccess) return;
    users().erase(memory);
    lamina::cuda::check(error, "pinning the channel's memory");
  }
  ~Pinned() {
    const std::lock_guard lock(mutex());
    if (--users()[memory_] > 0) return;
    users().erase(memory_);
    cudaHostUnregister(memory_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::map<void*, int>& users() {
    static std::map<void*, int> all;
    return all;
  }

  void* memory_;
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

}  // namespace lamina::fhbn::cuda
