#include "core/slab.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace lamina {

namespace {

[[noreturn]] void throw_unknown(RequestId request) {
  throw UnknownRequest("request " + std::to_string(request) + " is not in this slab");
}

std::uint32_t checked_count(std::int64_t n) {
  if (n < 0 || n > Slab::kMaxCapacity) {
    throw std::invalid_argument("n is " + std::to_string(n) + " but must be between 0 and " +
                                std::to_string(Slab::kMaxCapacity));
  }
  return static_cast<std::uint32_t>(n);
}

std::size_t checked_capacity(std::int64_t capacity) {
  if (capacity < 1 || capacity > Slab::kMaxCapacity) {
    throw std::invalid_argument("capacity is " + std::to_string(capacity) + " but must be between 1 and " +
                                std::to_string(Slab::kMaxCapacity));
  }
  return static_cast<std::size_t>(capacity);
}

}  // namespace

Slab::Slab(std::int64_t capacity) : free_stack_(checked_capacity(capacity)), owners_(free_stack_.size()) {
  std::iota(free_stack_.begin(), free_stack_.end(), Slot{0});
}

std::span<const Slot> Slab::allocate(RequestId request, std::int64_t n) {
  const std::uint32_t count = checked_count(n);
  require_free(n);
  const Handle handle = handles_.find(request);
  IndexList& list = handle == FlatMap::kNone ? open(request, count) : lists_[handle];
  reserve(list, count);

  const std::span<const Slot> slots = pop(count);
  std::copy(slots.begin(), slots.end(), list.buffer.slots.get() + list.size);
  list.size += count;
  return slots;
}

std::span<const Slot> Slab::extend(std::span<const RequestId> requests, std::int64_t n) {
  const std::uint32_t count = checked_count(n);
  look_up(requests);
  require_free(n * static_cast<std::int64_t>(requests.size()));
  for (IndexList* list : batch_) reserve(*list, count);

  // Nothing below can fail.
  const std::span<const Slot> slots = pop(count * requests.size());
  const Slot* next = slots.data();
  if (count == 1) {  // a decode step: one store a request, not one call of memcpy
    for (IndexList* list : batch_) list->buffer.slots[list->size++] = *next++;
  } else {
    for (IndexList* list : batch_) {
      std::copy_n(next, count, list->buffer.slots.get() + list->size);
      list->size += count;
      next += count;
    }
  }
  return slots;
}

void Slab::fork(RequestId parent, RequestId child, std::optional<std::int64_t> n) {
  const std::int64_t length = list_of(parent).size;
  const std::int64_t shared = n.value_or(length);
  if (shared < 0 || shared > length) {
    throw std::invalid_argument("n is " + std::to_string(shared) + " but request " + std::to_string(parent) +
                                " has " + std::to_string(length) + " tokens to share");
  }
  if (contains(child)) {
    throw std::invalid_argument("request " + std::to_string(child) +
                                " is already in this slab, so it cannot begin as a fork");
  }

  IndexList& copy = open(child, static_cast<std::uint32_t>(shared));
  const IndexList& source = list_of(parent);  // only now: open() may have moved the lists
  copy.size = static_cast<std::uint32_t>(shared);
  std::copy_n(source.buffer.slots.get(), copy.size, copy.buffer.slots.get());
  for (std::uint32_t i = 0; i < copy.size; ++i) ++owners_[static_cast<std::size_t>(copy.buffer.slots[i])];
}

void Slab::release(RequestId request) {
  if (!contains(request)) throw_unknown(request);
  close(request);
}

void Slab::release(std::span<const RequestId> requests) {
  look_up(requests);
  for (const RequestId request : requests) close(request);
}

Slab::View Slab::indices(RequestId request) const {
  const IndexList& list = list_of(request);
  return {list.buffer.slots, list.size};
}

std::vector<RequestId> Slab::requests() const {
  std::vector<RequestId> requests;
  requests.reserve(handles_.size());
  handles_.for_each([&](RequestId request, Handle) { requests.push_back(request); });
  return requests;
}

std::uint32_t Slab::refcount(std::int64_t slot) const {
  if (slot < 0 || slot >= capacity()) {
    throw std::out_of_range("slot " + std::to_string(slot) + " is outside this slab of " +
                            std::to_string(capacity()));
  }
  return owners_[static_cast<std::size_t>(slot)];
}

const Slab::IndexList& Slab::list_of(RequestId request) const {
  const Handle handle = handles_.find(request);
  if (handle == FlatMap::kNone) throw_unknown(request);
  return lists_[handle];
}

// Fills batch_ with the lists of a batch, all known and none twice: a repeated request is a scheduler's
// mistake in extend (one step makes one token a request) and would be a double free in release.
void Slab::look_up(std::span<const RequestId> requests) {
  batch_.resize(requests.size());
  ++batch_number_;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Handle handle = handles_.find(requests[i]);
    if (handle == FlatMap::kNone) throw_unknown(requests[i]);
    IndexList& list = lists_[handle];
    if (list.last_batch == batch_number_) {
      throw std::invalid_argument("request " + std::to_string(requests[i]) +
                                  " appears more than once in the batch");
    }
    list.last_batch = batch_number_;
    batch_[i] = &list;
  }
}

void Slab::require_free(std::int64_t asked) const {
  if (asked <= free()) return;
  throw SlabFull("asked for " + std::to_string(asked) + " slots, but only " + std::to_string(free()) +
                 " of " + std::to_string(capacity()) + " are free");
}

// A new, empty list for a new request. Whatever throws does so before the request exists.
Slab::IndexList& Slab::open(RequestId request, std::uint32_t room) {
  IndexBuffer buffer = buffers_.take(room);
  if (first_spare_ == FlatMap::kNone) {
    lists_.emplace_back();
    first_spare_ = static_cast<Handle>(lists_.size() - 1);
  }
  handles_.insert(request, first_spare_);
  IndexList& list = lists_[first_spare_];
  first_spare_ = list.next_spare;
  list.buffer = std::move(buffer);
  list.next_spare = FlatMap::kNone;
  return list;
}

void Slab::close(RequestId request) noexcept {
  const Handle handle = handles_.find(request);
  IndexList& list = lists_[handle];
  // Backwards, so that the stack hands them out forwards. Always written and only sometimes kept: no branch
  // to mispredict where prompts are shared. used_ - 1 is in range while any slot of the list is unvisited.
  std::size_t top = used_;
  for (std::uint32_t i = list.size; i-- > 0;) {
    const Slot slot = list.buffer.slots[i];
    free_stack_[top - 1] = slot;
    top -= --owners_[static_cast<std::size_t>(slot)] == 0;
  }
  used_ = top;
  list.size = 0;
  buffers_.give(std::move(list.buffer));
  handles_.erase(request);
  list.next_spare = first_spare_;
  first_spare_ = handle;
}

void Slab::reserve(IndexList& list, std::uint32_t more) {
  if (list.size + more <= list.buffer.capacity) return;
  IndexBuffer larger = buffers_.take(list.size + more);  // the next power of two: geometric growth
  std::copy_n(list.buffer.slots.get(), list.size, larger.slots.get());
  buffers_.give(std::exchange(list.buffer, std::move(larger)));
}

// The popped slots stay where they were in the stack until something is pushed over them.
std::span<const Slot> Slab::pop(std::size_t count) noexcept {
  const std::span<const Slot> slots(free_stack_.data() + used_, count);
  for (const Slot slot : slots) owners_[static_cast<std::size_t>(slot)] = 1;
  used_ += count;
  return slots;
}

}  // namespace lamina
