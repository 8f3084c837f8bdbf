#pragma once

#include <cstdint>

#include "fhbn/cuda/copy.cuh"
#include "fhbn/cuda/wait.cuh"

// Sending, by one kernel. What Sender::send() does on the host.
namespace lamina::fhbn::cuda {

struct SendArgs {
  End end;
  Buffers parts;  // checked: a slot holds them
};

// Waits until the slot of message `seqno` is free. One thread: many that look at the host's memory would only
// be in each other's way.
LAMINA_DEVICE Fault await_slot(const End& end, std::uint64_t seqno) {
  const std::uint64_t known = end.cursor->consumed;
  const Change change = wait_for_change(end, end.ring->consumed, known);
  if (change.fault == Fault::kNone && change.seqno - known > seqno - known) return Fault::kFalseCredits;
  end.cursor->gate.consumed = change.seqno;
  return change.fault;
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

// Of a slot, from its header on.
LAMINA_DEVICE std::uint64_t bytes_in_use(const Buffers& parts) {
  std::uint64_t bytes = sizeof(SlotHeader);
  for (std::uint32_t i = 0; i < parts.count; ++i) bytes += rounded_up(parts.part[i].bytes, kPartAlignment);
  return bytes;
}

// This thread's share of putting the message into its slot.
LAMINA_DEVICE void gather(const SendArgs& args, std::uint64_t seqno) {
  SlotHeader* const slot = args.end.slot(seqno);
  if (block_x() == 0) write_header(*slot, seqno, args);
  auto* to = reinterpret_cast<std::uint8_t*>(slot + 1);
  for (std::uint32_t i = 0; i < args.parts.count; ++i) {
    copy_share(to, args.parts.part[i].data, args.parts.part[i].bytes);
    to += rounded_up(args.parts.part[i].bytes, kPartAlignment);
  }
}

// For one thread, when the message lies in its slot.
LAMINA_DEVICE void publish(const SendArgs& args, std::uint64_t seqno) {
  const End& end = args.end;
  if (!end.has_nic()) {
    store_release_sys(&end.ring->published.seqno, seqno + 1);
  } else if (!post_message(end.nic, seqno, bytes_in_use(args.parts))) {
    fail(end, Fault::kNicFailed, seqno);
  }
}

// Waits for a slot if none is known to be free, copies the parts there and publishes the message. All blocks
// copy; the last one to end says so to the peer or its NIC, which saves a kernel of its own for that.
LAMINA_KERNEL(kCopyThreads) send(const SendArgs args) {
  const End& end = args.end;
  Cursor& cursor = *end.cursor;
  if (is_over(end)) return;
  const std::uint64_t seqno = cursor.next;
  const bool full = seqno - cursor.consumed >= end.slot_count;
  const Fault fault = full ? result_of_first(end, [&] { return await_slot(end, seqno); }) : Fault::kNone;
  if (fault == Fault::kNone) gather(args, seqno);
  if (!is_last(end) || thread_index() != 0) return;
  if (fault != Fault::kNone) return fail(end, fault, seqno);
  if (full) {
    cursor.consumed = cursor.gate.consumed;
    cursor.gate = {};
  }
  cursor.next = seqno + 1;
  publish(args, seqno);
}

}  // namespace lamina::fhbn::cuda
