#pragma once

#include <cstdint>

namespace lamina {

enum class Pipelining { kSerial, kRotational, kFixed, kPingPong };

// Which replica runs which slice: the one definition that the simulator and the engine share.
//
// Rotational (v2 paper 4.3): n batches on n - 1 replicas, slice k of batch j on replica (j + k) mod (n - 1),
// counted from 0, k counting slices from the start of the cluster, the same for every batch. Fixed (v1
// paper 5.1.2): every batch has a replica of its own. Serial: one batch, one replica. Ping-pong: all batches
// take turns on one replica. In all of them the order of work, on every replica and on the attention workers,
// is by k and then by j.
struct Rotation {
  Pipelining pipelining = Pipelining::kSerial;
  int batches = 1;
  // Fixed: every replica does the attention of its batch, not the attention workers for all.
  bool own_attention = false;

  int replicas() const {
    switch (pipelining) {
      case Pipelining::kRotational:
        return batches > 1 ? batches - 1 : 1;
      case Pipelining::kFixed:
        return batches;
      case Pipelining::kSerial:
      case Pipelining::kPingPong:
        return 1;
    }
    return 1;
  }

  int replica(int batch, std::int64_t slice) const {
    switch (pipelining) {
      case Pipelining::kRotational:
        // Two batches, the usual case, need no division.
        return batches <= 2 ? 0 : static_cast<int>((batch + slice) % (batches - 1));
      case Pipelining::kFixed:
        return batch;
      case Pipelining::kSerial:
      case Pipelining::kPingPong:
        return 0;
    }
    return 0;
  }

  // Whether a batch's next slice runs elsewhere, so that its context has to travel.
  bool migrates() const { return pipelining == Pipelining::kRotational && replicas() > 1; }
};

}  // namespace lamina
