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

Sight checked_sight(Sight sight) {
  if (sight.window < 0 || sight.chunk < 0) {
    throw std::invalid_argument("window is " + std::to_string(sight.window) + " and chunk " +
                                std::to_string(sight.chunk) + " but must be 0, for all tokens, or more");
  }
  return sight;
}

}  // namespace

Slab::Slab(std::int64_t capacity, Sight sight)
    : free_stack_(checked_capacity(capacity)), owners_(free_stack_.size()), sight_(checked_sight(sight)) {
  std::iota(free_stack_.begin(), free_stack_.end(), Slot{0});
}

std::span<const Slot> Slab::allocate(RequestId request, std::int64_t n) {
  const std::uint32_t tokens = checked_count(n);
  const Handle handle = handles_.find(request);
  const std::int64_t before = handle == FlatMap::kNone ? 0 : lists_[handle].length;
  const auto count = static_cast<std::uint32_t>(std::min(n, sight_.observed(before + n)));
  if (handle != FlatMap::kNone) require_visible(request, lists_[handle], tokens);
  require_free(count);
  IndexList& list = handle == FlatMap::kNone ? open(request, count) : lists_[handle];
  reserve(list, count);

  // Nothing below can fail.
  trim(list, tokens, count);
  const std::span<const Slot> slots = pop(count);
  std::copy(slots.begin(), slots.end(), list.slots() + list.size);
  list.size += count;
  list.length += n;
  return slots;
}

std::span<const Slot> Slab::extend(std::span<const RequestId> requests, std::int64_t n) {
  const std::uint32_t count = checked_count(n);
  if (sight_.limited() && count > 1) {
    throw std::invalid_argument("n is " + std::to_string(n) + " but must be 0 or 1 where sight is limited");
  }
  look_up(requests);
  require_free(n * static_cast<std::int64_t>(requests.size()));
  if (sight_.limited()) {
    for (std::size_t i = 0; i < requests.size(); ++i) require_visible(requests[i], *batch_[i], count);
  }
  for (IndexList* list : batch_) reserve(*list, count);

  // Nothing below can fail.
  if (sight_.limited()) {
    for (IndexList* list : batch_) trim(*list, count, count);
  }
  if (count == 1) turn(requests.size());
  const std::span<const Slot> slots = pop(count * requests.size());
  const Slot* next = slots.data();
  if (count == 1) {  // a decode step: one store a request, not one call of memcpy
    for (IndexList* list : batch_) {
      list->slots()[list->size++] = *next++;
      ++list->length;
    }
  } else {
    for (IndexList* list : batch_) {
      std::copy_n(next, count, list->slots() + list->size);
      list->size += count;
      list->length += count;
      next += count;
    }
  }
  return slots;
}

void Slab::fork(RequestId parent, RequestId child, std::optional<std::int64_t> n) {
  const std::int64_t length = list_of(parent).length;
  const std::int64_t shared = n.value_or(length);
  if (shared < 0 || shared > length) {
    throw std::invalid_argument("n is " + std::to_string(shared) + " but request " + std::to_string(parent) +
                                " has " + std::to_string(length) + " tokens to share");
  }
  if (contains(child)) {
    throw std::invalid_argument("request " + std::to_string(child) +
                                " is already in this slab, so it cannot begin as a fork");
  }

  // The parent's slots are those of its last tokens.
  const std::int64_t stored = std::max<std::int64_t>(list_of(parent).size - (length - shared), 0);
  IndexList& copy = open(child, static_cast<std::uint32_t>(stored));
  const IndexList& source = list_of(parent);  // only now: open() may have moved the lists
  copy.size = static_cast<std::uint32_t>(stored);
  copy.length = shared;
  std::copy_n(source.slots(), copy.size, copy.slots());
  for (std::uint32_t i = 0; i < copy.size; ++i) ++owners_[static_cast<std::size_t>(copy.slots()[i])];
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
  return {{list.buffer.slots, list.slots()}, list.size};
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

void Slab::require_free(std::int64_t slots) const {
  if (slots <= free()) return;
  throw SlabFull(std::to_string(slots) + " slots were requested, but only " + std::to_string(free()) +
                 " of " + std::to_string(capacity()) + " are free");
}

// A request that began as the fork of a longer one may lack tokens that its next ones see.
void Slab::require_visible(RequestId request, const IndexList& list, std::uint32_t n) const {
  if (list.size + n >= sight_.observed(list.length + n)) return;
  throw std::invalid_argument("request " + std::to_string(request) + " shares too little to grow by " +
                              std::to_string(n) + ": its parent had given back slots that it needs");
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
  give_back(list.slots(), list.size);
  list.begin = list.size = 0;
  list.length = 0;
  buffers_.give(std::move(list.buffer));
  handles_.erase(request);
  list.next_spare = first_spare_;
  first_spare_ = handle;
}

void Slab::reserve(IndexList& list, std::uint32_t more) {
  if (list.begin + list.size + more <= list.buffer.capacity) return;
  // The next power of two: geometric growth. A list that moves on in its buffer gets room to move on as far
  // as it is long before it is copied again.
  const std::uint32_t room = list.begin == 0 ? more : std::max(more, list.size);
  IndexBuffer larger = buffers_.take(list.size + room);
  std::copy_n(list.slots(), list.size, larger.slots.get());
  buffers_.give(std::exchange(list.buffer, std::move(larger)));
  list.begin = 0;
}

// Gives back what is not seen any more once n tokens, `count` of them with slots, are appended.
void Slab::trim(IndexList& list, std::uint32_t n, std::uint32_t count) noexcept {
  const std::int64_t retained = sight_.observed(list.length + n) - count;
  if (list.size <= retained) return;
  const auto dropped = static_cast<std::uint32_t>(list.size - retained);
  give_back(list.slots(), dropped);
  list.begin += dropped;
  list.size -= dropped;
}

// Backwards, so that the stack hands them out forwards. Always written and only sometimes kept: no branch to
// mispredict where prompts are shared. used_ - 1 is in range while any slot of the list is unvisited.
void Slab::give_back(const Slot* slots, std::uint32_t count) noexcept {
  std::size_t top = used_;
  for (std::uint32_t i = count; i-- > 0;) {
    const Slot slot = slots[i];
    free_stack_[top - 1] = slot;
    top -= --owners_[static_cast<std::size_t>(slot)] == 0;
  }
  used_ = top;
}

// A request's tokens of many steps are as far apart as its batch is large. At a distance of a power of two
// they share few sets of each cache, which then hold a few of them only; so those of an even batch get their
// slots one place further with every step, at an odd distance.
void Slab::turn(std::size_t batch) noexcept {
  if (batch == 0 || batch % 2 != 0) return;
  const auto first = free_stack_.begin() + static_cast<std::ptrdiff_t>(used_);
  const auto middle = first + static_cast<std::ptrdiff_t>(steps_++ % batch);
  std::rotate(first, middle, first + static_cast<std::ptrdiff_t>(batch));
}

// The popped slots stay where they were in the stack until something is pushed over them.
std::span<const Slot> Slab::pop(std::size_t count) noexcept {
  const std::span<const Slot> slots(free_stack_.data() + used_, count);
  for (const Slot slot : slots) owners_[static_cast<std::size_t>(slot)] = 1;
  used_ += count;
  return slots;
}

}  // namespace lamina
