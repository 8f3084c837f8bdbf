#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/flat_map.hpp"
#include "core/index_buffer.hpp"
#include "core/sight.hpp"

namespace lamina {

using RequestId = std::int64_t;

// There are not enough free slots. Nothing has changed; release something and ask again.
struct SlabFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A request id that this slab has not been given, or that has been released.
struct UnknownRequest : std::out_of_range {
  using std::out_of_range::out_of_range;
};

// check_integrity() found the slab's own books wrong: a bug in it, never in its caller.
struct BrokenInvariant : std::logic_error {
  using std::logic_error::logic_error;
};

// Hands out the KV arena's slots one token at a time, so that no memory is lost to half-filled pages, and
// remembers which request holds which slots, in token order. Forked requests share slots by counting.
//
// With a limited sight a request holds those of its tokens that the newest one sees: no later one sees
// others.
//
// Every operation either happens completely or throws and changes nothing, also for a batch.
// Not thread-safe: one owner (in Python, the GIL) serialises the calls.
class Slab {
public:
  static constexpr std::int64_t kMaxCapacity = INT32_MAX;

  // A request's slots at the moment of asking. It stays readable, and the same, whatever happens to the
  // request or to the slab; once the request is released, others may get these slots.
  struct View {
    std::shared_ptr<const Slot[]> slots;
    std::size_t size;
  };

  explicit Slab(std::int64_t capacity, Sight sight = {});
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // Appends n tokens to a request, which begins to exist if it is new. Returns the new slots, those of the
  // last tokens where the last of all does not see n; readable until the next call that changes the slab.
  std::span<const Slot> allocate(RequestId request, std::int64_t n);

  // Appends n tokens to every request of a batch, none of them twice; one at most with a limited sight.
  // Returns the new slots, n for the first request, n for the second and so on, readable until the next call
  // that changes the slab. So many have to be free, also where as many are given back. Which of the next free
  // slots of a step of one token are whose changes from step to step.
  std::span<const Slot> extend(std::span<const RequestId> requests, std::int64_t n = 1);

  // Makes `child` a new request that shares the first n (or all) tokens of `parent`, as far as that still has
  // slots for them; from then on each grows by itself. Where that lacks a token that the child's next one
  // sees, the child cannot grow.
  void fork(RequestId parent, RequestId child, std::optional<std::int64_t> n = std::nullopt);

  // Forgets requests. A slot becomes free when its last owner goes; what was freed last is handed out first,
  // and one request's slots in the order it had them, because they are the likeliest still to be cached.
  void release(RequestId request);
  void release(std::span<const RequestId> requests);

  View indices(RequestId request) const;
  // Its tokens, with and without slots.
  std::int64_t length(RequestId request) const { return list_of(request).length; }
  bool contains(RequestId request) const noexcept { return handles_.find(request) != FlatMap::kNone; }
  std::vector<RequestId> requests() const;
  std::size_t request_count() const noexcept { return handles_.size(); }
  std::uint32_t refcount(std::int64_t slot) const;

  std::int64_t capacity() const noexcept { return static_cast<std::int64_t>(owners_.size()); }
  std::int64_t used() const noexcept { return static_cast<std::int64_t>(used_); }
  std::int64_t free() const noexcept { return capacity() - used(); }

  // Recounts everything and throws BrokenInvariant, naming the first thing found wrong. For tests and idle
  // moments: it visits every slot of the arena and every token of every request.
  void check_integrity() const;

private:
  friend struct SlabTestAccess;  // the stress test breaks a slab to see that check_integrity() notices
  using Handle = FlatMap::Handle;

  struct IndexList {
    IndexBuffer buffer;
    std::uint32_t begin = 0;             // where in the buffer: it moves on as slots are given back
    std::uint32_t size = 0;              // slots, of the last tokens
    std::int64_t length = 0;             // tokens
    Handle next_spare = FlatMap::kNone;  // chains the lists of no request
    std::uint64_t last_batch = 0;        // the last batch this list was in: finds repeated requests

    Slot* slots() const { return buffer.slots.get() + begin; }
  };

  const IndexList& list_of(RequestId request) const;
  void look_up(std::span<const RequestId> requests);
  void require_free(std::int64_t slots) const;
  void require_visible(RequestId request, const IndexList& list, std::uint32_t n) const;
  IndexList& open(RequestId request, std::uint32_t room);
  void close(RequestId request) noexcept;
  void reserve(IndexList& list, std::uint32_t more);
  void trim(IndexList& list, std::uint32_t n, std::uint32_t count) noexcept;
  void give_back(const Slot* slots, std::uint32_t count) noexcept;
  void turn(std::size_t batch) noexcept;
  std::span<const Slot> pop(std::size_t count) noexcept;
  std::vector<std::uint32_t> count_owners() const;

  // A stack that grows downwards: its free slots are [used_, capacity), the next one to go out first. So the
  // number of taken slots is the stack pointer, and popping many is one copy in the order of single pops.
  std::vector<Slot> free_stack_;
  std::size_t used_ = 0;
  std::uint64_t steps_ = 0;            // of even batches
  std::vector<std::uint32_t> owners_;  // of each slot; 2^32 requests would not fit in any memory
  Sight sight_;

  FlatMap handles_;  // request -> index into lists_
  std::vector<IndexList> lists_;
  Handle first_spare_ = FlatMap::kNone;
  IndexBufferPool buffers_;

  std::vector<IndexList*> batch_;  // look_up()'s answer, kept so that a batch call need not allocate
  std::uint64_t batch_number_ = 0;
};

}  // namespace lamina
