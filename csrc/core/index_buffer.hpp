#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace lamina {

// The index of one token's place in the KV arena.
using Slot = std::int32_t;

// Room for one request's slots. Shared, because a view of it may outlive the request.
struct IndexBuffer {
  std::shared_ptr<Slot[]> slots;
  std::uint32_t capacity = 0;
};

// Keeps returned buffers on one shelf per power of two, so that requests coming and going in a steady state
// never reach malloc. It gives nothing back to the system before it is destroyed: each shelf keeps as many
// buffers as were in use at once, so in total at most twice the slots that the requests of each size had at
// their peaks.
class IndexBufferPool {
public:
  IndexBuffer take(std::uint32_t least) {
    const std::uint32_t capacity = std::bit_ceil(std::max(least, kSmallest));
    auto& shelf = shelf_of(capacity);
    // Not make_shared_for_overwrite, which g++ 11 lacks for arrays.
    if (shelf.empty()) return {std::shared_ptr<Slot[]>(new Slot[capacity]), capacity};
    IndexBuffer buffer{std::move(shelf.back()), capacity};
    shelf.pop_back();
    return buffer;
  }

  // Never fails: a buffer that cannot be kept is simply freed.
  void give(IndexBuffer buffer) noexcept {
    // A view still reads it: leave it to the view, whose numbers must never change under it.
    if (buffer.slots.use_count() != 1) return;
    try {
      shelf_of(buffer.capacity).push_back(std::move(buffer.slots));
    } catch (const std::bad_alloc&) {
    }
  }

private:
  static constexpr std::uint32_t kSmallest = 16;  // one cache line

  std::vector<std::shared_ptr<Slot[]>>& shelf_of(std::uint32_t capacity) {
    return shelves_[static_cast<std::size_t>(std::countr_zero(capacity))];
  }

  std::array<std::vector<std::shared_ptr<Slot[]>>, 32> shelves_;
};

}  // namespace lamina
