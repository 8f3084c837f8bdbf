#include <algorithm>
#include <string>

#include "core/slab.hpp"

namespace lamina {

namespace {

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw BrokenInvariant(otherwise);
}

std::string name(const char* what, std::int64_t number) { return what + std::to_string(number); }

}  // namespace

void Slab::check_integrity() const {
  require(used_ <= free_stack_.size() && free_stack_.size() == owners_.size(),
          name("the free list's top is outside it: used is ", static_cast<std::int64_t>(used_)));

  std::vector<bool> is_free(owners_.size());
  for (std::size_t i = used_; i < free_stack_.size(); ++i) {
    const Slot slot = free_stack_[i];
    require(slot >= 0 && slot < capacity(), name("the free list holds an impossible slot ", slot));
    const auto at = static_cast<std::size_t>(slot);
    require(!is_free[at], name("the free list holds twice slot ", slot));
    require(owners_[at] == 0, name("the free list holds a slot that is in use: ", slot));
    is_free[at] = true;
  }

  const std::vector<std::uint32_t> counted = count_owners();
  for (std::size_t slot = 0; slot < owners_.size(); ++slot) {
    require(owners_[slot] == counted[slot],
            name("the reference count differs from the lists that hold slot ", static_cast<Slot>(slot)) +
                ": " + std::to_string(owners_[slot]) + " against " + std::to_string(counted[slot]));
    require(is_free[slot] || owners_[slot] > 0,
            name("leaked, neither free nor held by a request: slot ", static_cast<Slot>(slot)));
  }
}

// How many requests hold each slot, counted from their lists, which are checked on the way.
std::vector<std::uint32_t> Slab::count_owners() const {
  std::vector<std::uint32_t> counted(owners_.size());
  std::vector<Handle> last_holder(owners_.size(), FlatMap::kNone);
  std::vector<bool> is_live(lists_.size());

  handles_.for_each([&](RequestId request, Handle handle) {
    require(handle < lists_.size() && !is_live[handle],
            name("no list of its own belongs to request ", request));
    is_live[handle] = true;
    require(handles_.find(request) == handle, name("the id map loses request ", request));
    const IndexList& list = lists_[handle];
    require(list.buffer.slots != nullptr && list.begin + list.size <= list.buffer.capacity,
            name("the list is longer than its buffer of request ", request));
    require(list.size <= sight_.observed(list.length) && (sight_.limited() || list.size == list.length),
            name("the list is not as long as its tokens are seen of request ", request));
    for (std::uint32_t i = 0; i < list.size; ++i) {
      const Slot slot = list.slots()[i];
      require(slot >= 0 && slot < capacity(), name("an impossible slot is held by request ", request));
      const auto at = static_cast<std::size_t>(slot);
      require(last_holder[at] != handle, name("a slot is held twice by request ", request));
      last_holder[at] = handle;
      ++counted[at];
    }
  });

  auto spare = static_cast<std::size_t>(std::count(is_live.begin(), is_live.end(), false));
  for (Handle handle = first_spare_; handle != FlatMap::kNone; handle = lists_[handle].next_spare) {
    require(handle < lists_.size() && !is_live[handle] && spare-- > 0,
            name("the chain of spare lists is wrong at list ", handle));
  }
  require(spare == 0, "a list belongs neither to a request nor to the spare ones");
  return counted;
}

}  // namespace lamina
