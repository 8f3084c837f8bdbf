#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/runtime.hpp"
#include "fhbn/ordered.hpp"

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

// A kernel's first launch may load it, and loading may wait for all that runs: for a kernel that waits for a
// message from the one that is being loaded, perhaps.
inline void load_kernels(std::initializer_list<const void*> entries, const char* doing) {
  cudaFuncAttributes ignored;
  for (const void* entry : entries) lamina::cuda::check(cudaFuncGetAttributes(&ignored, entry), doing);
}

// What the library keeps of an end that kernels work for; the device has its own.
template <typename Mailbox, typename Cursor>
struct Kept {
  Kept(const char* peer_name, const Cursor& start)
      : peer(peer_name),
        device(lamina::cuda::current_device()),
        mailbox(host_memory<Mailbox>()),
        cursor(device_memory<Cursor>()) {
    *mailbox = {};
    lamina::cuda::check(cudaMemcpy(cursor.get(), &start, sizeof start, cudaMemcpyHostToDevice),
                        "setting a cursor");
    lamina::cuda::check(cudaStreamSynchronize(nullptr),
                        "setting a cursor");  // the copy may still be under way
  }

  // Ends what waits.
  void stop() const { store_release(mailbox->abort, std::uint32_t{1}); }

  // Also waits for the last kernels and, if they have ended well, does something more on their device.
  template <typename More>
  cudaError_t stop_and(const More& more) const {
    stop();
    const int current = lamina::cuda::current_device();
    lamina::cuda::check(cudaSetDevice(device), "going to the end's device");
    cudaError_t waited = cudaDeviceSynchronize();
    if (waited == cudaSuccess) waited = more();
    cudaSetDevice(current);
    return waited;
  }

  std::string peer;
  int device;
  HostMemory<Mailbox> mailbox;
  DeviceMemory<Cursor> cursor;
};

// Whole pages of the host's that a device can reach, with the pieces of memory that other code has put
// there.
class MappedPages {
public:
  struct Piece {
    const void* memory;
    std::size_t bytes;
  };

  // `flags`: cudaHostRegisterIoMemory for a device's registers, or none.
  explicit MappedPages(std::vector<Piece> pieces, unsigned flags = 0) {
    std::ranges::sort(pieces, {}, &Piece::memory);
    for (const Piece& piece : pieces) {
      const std::uintptr_t begin = address_of(piece.memory) / kPage * kPage;
      const std::uintptr_t end = (address_of(piece.memory) + piece.bytes + kPage - 1) / kPage * kPage;
      // Neighbours stay apart: a page that other queues have pieces in too must not be pinned with one that
      // they have not.
      if (!ranges_.empty() && begin < ranges_.back().end) {
        ranges_.back().end = std::max(ranges_.back().end, end);
      } else {
        ranges_.push_back({begin, end, nullptr, nullptr});
      }
    }
    for (Range& range : ranges_) {
      void* const memory = reinterpret_cast<void*>(range.begin);
      range.pinned = std::make_unique<Pinned>(memory, range.end - range.begin, flags);
      range.device = on_device(static_cast<std::byte*>(memory));
    }
  }

  // Where the device finds a part of what was given.
  template <typename T>
  T* find(T* memory) const {
    const std::uintptr_t address = address_of(memory);
    const auto range = std::ranges::find_if(
        ranges_, [&](const Range& range) { return range.begin <= address && address < range.end; });
    return reinterpret_cast<T*>(range->device + (address - range->begin));
  }

private:
  static constexpr std::size_t kPage = 4096;
  static std::uintptr_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

  struct Range {
    std::uintptr_t begin, end;
    std::unique_ptr<Pinned> pinned;
    std::byte* device;
  };

  std::vector<Range> ranges_;
};

}  // namespace lamina::fhbn::cuda
