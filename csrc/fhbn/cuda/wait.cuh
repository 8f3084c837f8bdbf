#pragma once

#include <cstdint>

#include "fhbn/cuda/device.cuh"
#include "fhbn/cuda/end.hpp"
#include "fhbn/cuda/posting.cuh"

namespace lamina::fhbn::cuda {

// Looks between two questions about the clock, the peer's state and abort(): each look is a trip to the
// host's memory and back, a microsecond or two.
constexpr int kLooks = 16;

// Ends all that this end will ever do. For one thread, and only of an end that has not failed: it keeps the
// first reason.
LAMINA_DEVICE void fail(const End& end, Fault fault, std::uint64_t seqno, std::uint32_t part = 0,
                        std::uint64_t has = 0, std::uint64_t room = 0) {
  end.cursor->fault = fault;
  if (end.fate != nullptr) *end.fate = 1;
  Mailbox::Report& report = end.mailbox->report;
  report.part = part;
  report.seqno = seqno;
  report.has = has;
  report.room = room;
  store_release_sys(reinterpret_cast<std::uint32_t*>(&report.fault), static_cast<std::uint32_t>(fault));
}

// Whether there is nothing to do any more: this end has failed, or one that shares its fate, in a kernel that
// came before on the stream.
LAMINA_DEVICE bool is_over(const End& end) {
  return end.cursor->fault != Fault::kNone || (end.fate != nullptr && *end.fate != 0);
}

struct Change {
  Fault fault;
  std::uint64_t seqno;  // what the peer's line says by now
};

// Looks at the peer's line until it is no longer at `seen`. Whatever else ends the wait, one more look comes
// after it: what the peer did before it closed or ended counts.
LAMINA_DEVICE Change wait_for_change(const End& end, const Side& line, std::uint64_t observed) {
  const std::uint64_t start = global_timer();
  while (true) {
    LAMINA_UNROLL_1
    for (int look = 0; look < kLooks; ++look) {
      if (look_sys(&line.seqno) != observed) return {Fault::kNone, load_acquire_sys(&line.seqno)};
    }
    Fault fault = Fault::kNone;
    if (!is_open(line)) {
      fault = Fault::kClosed;
    } else if (load_acquire_sys(&end.mailbox->abort) != 0) {
      fault = Fault::kPeerLost;
    } else if (end.has_nic() && end.nic.sends && !works(end.nic)) {
      fault = Fault::kNicFailed;  // a receiver has no request at its NIC that matters
    } else if (global_timer() - start >= end.timeout_ns) {
      fault = Fault::kLate;
    }
    if (fault != Fault::kNone) {
      const std::uint64_t seqno = load_acquire_sys(&line.seqno);
      return {seqno != observed ? Fault::kNone : fault, seqno};
    }
  }
}

// What one thread has to look for over the bus, for all threads of a grid, which have to call this: that of
// the first block to come here, so that it waits for no block that may not have begun. The others look at a
// word in the device's memory.
template <typename Find>
LAMINA_DEVICE Fault result_of_first(const End& end, const Find& find) {
  Gate& gate = end.cursor->gate;
  if (thread_index() == 0) {
    if (blocks_x() == 1 || count_relaxed_gpu(&gate.arrivals) == 0) {
      store_release_gpu(&gate.verdict, 1 + static_cast<std::uint32_t>(find()));
    } else {
      while (look_gpu(&gate.verdict) == 0) {
      }
      load_acquire_gpu(&gate.verdict);
    }
  }
  sync_block();
  return static_cast<Fault>(gate.verdict - 1);
}

// True in the first warp of the block that comes here last, when all others have done what comes before; of
// its lanes the first one has seen that. The counter is then as it was. A block that is alone need not count,
// which saves a short message a trip over the bus.
LAMINA_DEVICE bool is_last(const End& end) {
  sync_block();
  if (thread_index() >= kWarpThreads) return false;
  if (blocks_x() == 1) return true;
  int last = 0;
  if (thread_index() == 0 && count_acq_rel_sys(&end.cursor->arrivals) == blocks_x() - 1) {
    end.cursor->arrivals = 0;
    last = 1;
  }
  return shuffle(last, 0) != 0;
}

}  // namespace lamina::fhbn::cuda
