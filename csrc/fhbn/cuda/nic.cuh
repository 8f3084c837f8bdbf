#pragma once

#include <cstddef>
#include <cstdint>

#include "fhbn/cuda/posting.cuh"

// What a NIC's end launches by itself. What a message takes is in send.cuh and receive.cuh.
namespace lamina::fhbn::cuda {

// For an end whose message was given back where it lay.
LAMINA_KERNEL(kWarpThreads) post(const NicEnd nic) {
  const auto& line = *reinterpret_cast<const Side*>(nic.memory + offsetof(Ring, consumed));
  post_consumed(nic, thread_index() == 0 ? load_acquire_sys(&line.seqno) : 0);
}

LAMINA_KERNEL(kWarpThreads) poll_nic(const NicEnd nic) {
  const bool first = thread_index() == 0;
  NicCursor& cursor = *nic.cursor;
  Posting posting;
  rdma::NothingRequest request{};
  if (first) posting.state = cursor.state;
  const bool rings = first && cursor.trouble == NicTrouble::kNone && make_room(nic, posting);
  if (rings) request = noted(posting, rdma::put_nothing(nic.queue, posting.state));
  ring_for_one(nic, posting, request, rings);
  if (rings) wait_until_done(nic, posting.state, posting.state.next);
  if (first) cursor.state = posting.state;
}

}  // namespace lamina::fhbn::cuda
