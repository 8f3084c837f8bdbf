#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/host_device.hpp"

// How a channel lies in memory, as every engine, the GPU's kernels and a peer of another build see it. All of
// it is little-endian and none of it is trusted: what a peer may have written is checked before it is used.
//
//   0     Preamble     written once by the receiver, before the sender knows of the ring
//   128   Published    the sender's line: how many messages are there
//   256   Consumed     the receiver's line: how many slots it has given back, which are the sender's credits
//   384   Asleep       whether the receiver waits in the kernel
//   512   Asleep       whether the sender does
//   4096  slots        each a SlotHeader and room for parts of `message_bytes`
//
// A message's number is its seqno. It lies in slot seqno % slots; since slots are a power of two, that holds
// beyond 2^64 too.
namespace lamina::fhbn {

inline constexpr std::uint64_t kMagic = 0x31304e42484d414c;  // "LAMHBN01"
// Two cache lines: processors fetch pairs of them, and one side's must not come along with the other's.
inline constexpr std::size_t kSeparation = 128;
inline constexpr std::size_t kSlotsOffset = 4096;
inline constexpr std::size_t kPartAlignment = 64;
inline constexpr std::uint32_t kMostParts = 14;
inline constexpr std::uint32_t kMostSlots = 1u << 16;
inline constexpr std::uint64_t kMostMessageBytes = std::uint64_t{1} << 40;

struct alignas(kSeparation) Preamble {
  std::uint64_t magic;
  std::uint64_t message_bytes;  // of all the parts of a message together
  std::uint64_t first_seqno;
  std::uint32_t slots;
  std::uint32_t epoch;
};

// What one side says of itself; the other reads it.
enum class State : std::uint32_t {
  kOpen = 0,
  kClosed = 1,  // there will be nothing more
};

struct alignas(kSeparation) Side {
  std::uint64_t seqno;    // the first one not yet published, or not yet consumed
  State state;            // sent by the same line, so that a waiter sees both
  std::uint32_t unheard;  // 1: this side is a device, which cannot wake a sleeper in the kernel
};

inline constexpr std::size_t kLineBytes = 16;  // of a Side: what it says
static_assert(offsetof(Side, unheard) + sizeof(Side::unheard) == kLineBytes);

struct alignas(kSeparation) Asleep {
  std::uint32_t flag;  // 1: sleeps on this word. The waker writes 0 first.
};

// Before a message's parts. A reader takes a copy and checks that; the peer may change it meanwhile.
struct alignas(kSeparation) SlotHeader {
  std::uint64_t seqno;
  std::uint32_t epoch;
  std::uint32_t parts;
  std::uint64_t bytes[kMostParts];
};

struct Ring {
  Preamble preamble;
  Side published;
  Side consumed;
  Asleep receiver;
  Asleep sender;
};

static_assert(sizeof(Preamble) == kSeparation && sizeof(Side) == kSeparation &&
              sizeof(Asleep) == kSeparation);
static_assert(sizeof(SlotHeader) == kSeparation && sizeof(Ring) == 5 * kSeparation &&
              sizeof(Ring) <= kSlotsOffset);

LAMINA_HD constexpr std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Each part begins at a multiple of kPartAlignment. However the bytes are divided, they need no more than
// this.
LAMINA_HD constexpr std::uint64_t slot_room(std::uint64_t message_bytes) {
  return rounded_up(message_bytes, kPartAlignment) + (kMostParts - 1) * kPartAlignment;
}

LAMINA_HD constexpr std::uint64_t slot_stride(std::uint64_t message_bytes) {
  return sizeof(SlotHeader) + rounded_up(slot_room(message_bytes), kSeparation);
}

LAMINA_HD constexpr std::uint64_t ring_bytes(std::uint64_t message_bytes, std::uint32_t slots) {
  return rounded_up(kSlotsOffset + slots * slot_stride(message_bytes), kSlotsOffset);
}

LAMINA_HD constexpr bool is_power_of_two(std::uint32_t n) { return n != 0 && (n & (n - 1)) == 0; }

// Whether a ring of this shape can be; `ring_bytes` of one that can does not overflow.
LAMINA_HD constexpr bool is_sound(std::uint64_t message_bytes, std::uint32_t slots) {
  return is_power_of_two(slots) && slots <= kMostSlots && message_bytes >= 1 &&
         message_bytes <= kMostMessageBytes;
}

}  // namespace lamina::fhbn
