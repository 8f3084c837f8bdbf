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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/runtime.hpp"
#include "fhbn/ordered.hpp"

namespace lamina::fhbn::cuda {

// Memory of the host pinned for devices to reach, for as long as this lives. The driver takes a page once, so
// it is shared: a ring by two ends over it and by what posts for them, a NIC's page by many queue pairs. To
// pin may take until what runs on the devices has ended: other memory can be pinned meanwhile.
class Pinned {
public:
  // `flags`: besides that any device may reach it.
  Pinned(void* memory, std::size_t bytes, unsigned flags = 0)
      : range_(used(static_cast<std::byte*>(memory), bytes)) {
    const std::lock_guard lock(range_->changing);
    if (range_->is_pinned) return;
    const cudaError_t pinned = cudaHostRegister(range_->begin, range_->bytes,
                                                cudaHostRegisterPortable | cudaHostRegisterMapped | flags);
    range_->is_pinned = pinned == cudaSuccess;
    if (pinned != cudaSuccess) release();
    lamina::cuda::check(pinned, "pinning the channel's memory");
  }
  ~Pinned() {
    const std::lock_guard lock(range_->changing);
    release();
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

private:
  struct Range {
    std::byte* begin;
    std::size_t bytes;
    int users = 0;
    bool is_pinned = false;
    std::mutex changing = {};  // held while it is pinned or let go, and taken before that of all ranges
  };
  struct Ranges {
    std::mutex mutex;
    std::map<std::byte*, std::shared_ptr<Range>> by_begin;
  };

  static Ranges& all() {
    static Ranges one;
    return one;
  }

  // The range that these bytes are in, with one user more.
  static std::shared_ptr<Range> used(std::byte* begin, std::size_t bytes) {
    const std::lock_guard lock(all().mutex);
    auto& ranges = all().by_begin;
    const auto behind = ranges.upper_bound(begin);
    const bool inside = behind != ranges.begin() &&
                        begin + bytes <= std::prev(behind)->first + std::prev(behind)->second->bytes;
    auto& range = inside ? std::prev(behind)->second : ranges[begin];
    if (!inside) range.reset(new Range{begin, bytes});
    ++range->users;
    return range;
  }

  // With the range held. It counts as used until it is let go: other callers wait meanwhile, and pin it
  // again.
  void release() {
    {
      const std::lock_guard lock(all().mutex);
      if (range_->users > 1) {
        --range_->users;
        return;
      }
    }
    if (std::exchange(range_->is_pinned, false)) cudaHostUnregister(range_->begin);
    const std::lock_guard lock(all().mutex);
    if (--range_->users == 0) all().by_begin.erase(range_->begin);
  }

  std::shared_ptr<Range> range_;
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
DeviceMemory<T> device_memory(std::size_t bytes, const char* doing) {
  void* memory = nullptr;
  lamina::cuda::check(cudaMalloc(&memory, bytes), doing);
  return DeviceMemory<T>(static_cast<T*>(memory));
}

// Into a device's memory, where it is when this returns: the copy alone may still be under way.
inline void write(void* to, const void* from, std::size_t bytes, const char* doing) {
  lamina::cuda::check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), doing);
  lamina::cuda::check(cudaStreamSynchronize(nullptr), doing);
}

// A ring or its mirror, as kernels address it: it is the device's own, or the host's and pinned while this
// lives.
class MappedRing {
public:
  MappedRing(void* memory, std::size_t bytes, bool is_on_device) : begin_(static_cast<std::byte*>(memory)) {
    if (is_on_device) return;
    pinned_.emplace(memory, bytes);
    begin_ = on_device(begin_);
  }
  std::byte* begin() const { return begin_; }

private:
  std::optional<Pinned> pinned_;
  std::byte* begin_;
};

template <typename Kernel>
const void* entry_of(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

// A kernel's first launch may load it, and loading may wait for all that runs: for a kernel that waits for a
// message from the one that is being loaded, perhaps.
inline void load_kernels(std::initializer_list<const void*> entries, const char* doing) {
  cudaFuncAttributes ignored;
  for (const void* entry : entries) {
    lamina::cuda::check(cudaFuncGetAttributes(&ignored, entry), doing);
    // As attention's: a multiprocessor on which one of these waits would else be none of attention's.
    lamina::cuda::check(cudaFuncSetAttribute(entry, cudaFuncAttributePreferredSharedMemoryCarveout,
                                             cudaSharedmemCarveoutMaxShared),
                        doing);
  }
}

// What the library keeps of an end that kernels work for; the device has its own.
template <typename Mailbox, typename Cursor>
struct OwnedEnd {
  OwnedEnd(const char* peer_name, const Cursor& start)
      : peer(peer_name),
        device(lamina::cuda::current_device()),
        mailbox(host_memory<Mailbox>()),
        cursor(device_memory<Cursor>(sizeof start, "making a cursor")) {
    *mailbox = {};
    write(cursor.get(), &start, sizeof start, "setting a cursor");
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
