#pragma once

#include <stdexcept>

namespace lamina::fhbn {

// What can go wrong with a channel; each says in a sentence what, and which peer.
struct ChannelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The peer has ended without closing. What it had published before can still be received.
struct PeerLost : ChannelError {
  using ChannelError::ChannelError;
};

// The peer has closed its end, and there is nothing left to receive.
struct ChannelClosed : ChannelError {
  using ChannelError::ChannelError;
};

// Nothing happened in time. The channel is as it was before the call.
struct DeadlinePassed : ChannelError {
  using ChannelError::ChannelError;
};

// The shared memory holds what no peer of ours writes. The channel cannot be used any more.
struct Corrupted : ChannelError {
  using ChannelError::ChannelError;
};

}  // namespace lamina::fhbn
