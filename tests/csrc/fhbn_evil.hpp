#pragma once

// Somebody who has mapped a ring and follows none of its rules.

#include "fhbn_children.hpp"
#include "fhbn_messages.hpp"

namespace fhbn_test {

class Evil {
public:
  Evil(const Segment& segment, std::uint64_t seed) : segment_(segment), random_(seed) {}

  // Damages some field, or repairs a message that others may damage. `next`: what the end looks at next;
  // values near those expected go further than any others.
  void write_something(std::uint64_t next) {
    Ring& ring = segment_.ring();
    SlotHeader& slot = segment_.slot(next);
    switch (random_.below(13)) {
      case 0:
        return write(slot.seqno, next + random_.below(3) - 1);
      case 1:
        return write(slot.epoch, segment_.geometry().epoch + (random_.one_in(4) ? 1 : 0));
      case 2:
        return write(slot.parts, random_.one_in(4) ? any<std::uint32_t>() : any_below(kMostParts + 2));
      case 3:
        return write(slot.bytes[random_.below(kMostParts)], any_size());
      case 4:
        return write(ring.published.seqno, any_seqno(next));
      case 5:
        return write(ring.consumed.seqno, any_seqno(next));
      case 6:
        return write(ring.published.state, any_state());
      case 7:
        return write(ring.consumed.state, any_state());
      case 8:
        return write(random_.one_in(2) ? ring.published.unheard : ring.consumed.unheard, any_below(2));
      case 9:
        return write(random_.one_in(2) ? ring.sender.flag : ring.receiver.flag, any_below(3));
      case 10:
        return write(*(&ring.preamble.magic + random_.below(sizeof(Preamble) / sizeof(std::uint64_t))),
                     any<std::uint64_t>());
      default:
        return repair(ring, slot, next);
    }
  }

private:
  // As a peer would, whom the compiler does not know of.
  template <typename T, typename Value>
  static void write(T& field, Value value) {
    std::atomic_ref<T>(field).store(static_cast<T>(value), std::memory_order_relaxed);
  }

  template <typename T>
  T any() {
    const T all = static_cast<T>(random_());
    return all >> random_.below(8 * sizeof(T));  // of any magnitude
  }
  std::uint32_t any_below(std::uint32_t n) { return static_cast<std::uint32_t>(random_.below(n)); }

  std::uint64_t any_seqno(std::uint64_t next) {
    return random_.one_in(4) ? any<std::uint64_t>() : next + random_.below(7) - 3;
  }

  State any_state() { return static_cast<State>(random_.one_in(4) ? any<std::uint32_t>() : 0); }

  std::uint64_t any_size() {
    if (random_.one_in(3)) return 0 - random_.below(256);
    return random_.one_in(2) ? any<std::uint64_t>() : random_.below(2 * segment_.geometry().message_bytes);
  }

  void repair(Ring& ring, SlotHeader& slot, std::uint64_t next) {
    write(slot.seqno, next);
    write(slot.epoch, segment_.geometry().epoch);
    write(slot.parts, random_.below(4));
    for (auto& bytes : slot.bytes) write(bytes, random_.below(64));
    write(ring.published.state, State::kOpen);
    write(ring.consumed.state, State::kOpen);
    write(ring.published.seqno, next + 1);
    write(ring.consumed.seqno, next);
  }

  const Segment& segment_;
  Random random_;
};

// The same in a process of its own, for as long as this object lives.
class EvilProcess {
public:
  EvilProcess(const Segment& segment, std::uint64_t seed)
      : child_([&] {
          Evil evil(segment, seed);
          while (true) evil.write_something(std::atomic_ref(*next_).load(std::memory_order_relaxed));
        }) {}

  void look_at(std::uint64_t next) const { std::atomic_ref(*next_).store(next, std::memory_order_relaxed); }

private:
  Shared<std::uint64_t> next_;
  Child child_;
};

}  // namespace fhbn_test
