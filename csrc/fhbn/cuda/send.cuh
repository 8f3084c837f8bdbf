#pragma once

#include <cstdint>

#include "fhbn/cuda/copy.cuh"
#include "fhbn/cuda/wait.cuh"

// Sending: await_slot, then gather, on one stream. What Sender::send() does on the host.
namespace lamina::fhbn::cuda {

struct SendArgs {
  End end;
  Buffers parts;  // checked: a slot holds them
};

// Waits until the slot of the next message is free. One thread: many that look at the host's memory would
// only be in each other's way.
LAMINA_KERNEL(1) await_slot(const End end) {
  Cursor& cursor = *end.cursor;
  if (cursor.fault != Fault::kNone) return;
  const std::uint64_t sent = cursor.next - cursor.consumed;  // and not given back, as far as is known
  if (sent < end.slot_count) return;
  const Change change = wait_for_change(end, end.ring->consumed, cursor.consumed);
  if (change.fault != Fault::kNone) return fail(end, change.fault, cursor.next);
  if (change.seqno - cursor.consumed > sent) return fail(end, Fault::kFalseCredits, cursor.next);
  cursor.consumed = change.seqno;
}

LAMINA_DEVICE void write_header(SlotHeader& slot, std::uint64_t seqno, const SendArgs& args) {
  const auto thread = static_cast<std::uint32_t>(thread_index());
  if (thread < kMostParts) slot.bytes[thread] = thread < args.parts.count ? args.parts.part[thread].bytes : 0;
  if (thread == 0) {
    slot.seqno = seqno;
    slot.epoch = args.end.epoch;
    slot.parts = args.parts.count;
  }
}

// Copies the parts into the slot and publishes the message. All blocks copy; the last one to end says so to
// the peer, which saves a kernel of its own for that.
LAMINA_KERNEL(kCopyThreads) gather(const SendArgs args) {
  const End& end = args.end;
  Cursor& cursor = *end.cursor;
  if (cursor.fault != Fault::kNone) return;
  const std::uint64_t seqno = cursor.next;
  SlotHeader* const slot = end.slot(seqno);
  if (block_x() == 0) write_header(*slot, seqno, args);
  auto* to = reinterpret_cast<std::uint8_t*>(slot + 1);
  for (std::uint32_t i = 0; i < args.parts.count; ++i) {
    copy_share(to, args.parts.part[i].data, args.parts.part[i].bytes);
    to += rounded_up(args.parts.part[i].bytes, kPartAlignment);
  }
  if (!is_last(end)) return;
  cursor.next = seqno + 1;
  store_release_sys(&end.ring->published.seqno, seqno + 1);
}

}  // namespace lamina::fhbn::cuda
