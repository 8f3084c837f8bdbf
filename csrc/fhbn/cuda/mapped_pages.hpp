#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fhbn/cuda/mapped.hpp"

namespace lamina::fhbn::cuda {

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
