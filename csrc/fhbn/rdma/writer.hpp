#pragma once

#include <cstdint>
#include <string>

#include "fhbn/errors.hpp"
#include "fhbn/wait.hpp"
#include "fhbn/wire.hpp"

// All that an end of a channel asks of a NIC, whatever makes the work requests.
namespace lamina::fhbn::rdma {

enum class NicFault {
  kLocalAccess,    // the NIC may not read what it was to send
  kRemoteAccess,   // the peer's NIC refuses: wrong key, or outside the peer's memory
  kRetryExceeded,  // the peer's NIC does not answer
  kFlushed,        // the queue pair had failed before
  kMalformed,      // the NIC does not understand the request
  kStuck,          // the NIC has not done in time what it was asked to
  kOther,
};

// The NIC has given up. The channel cannot be used any more; another one can be made.
struct NicError : ChannelError {
  NicError(NicFault what, const std::string& sentence) : ChannelError(sentence), fault(what) {}
  NicFault fault;
};

// Writes from this end's memory into the peer's, both registered with their NICs; offsets are from the
// beginning of each. What is written by one writer arrives in that order, so that a line never comes before
// what it tells of. For one thread at a time.
//
// Memory may be changed again once the peer is known to have used it: a NIC that sends something again,
// because the answer was lost, sends what the peer's NIC has had already and leaves alone.
class Writer {
public:
  virtual ~Writer() = default;

  // Whether the next message and its line need not wait for room in the queue, as far as check() has seen.
  virtual bool has_room() const = 0;

  // Puts a request into the queue, waiting for room there if need be. Nothing is sent before ring(), except
  // what has to go to make room.
  virtual void write(std::uint64_t local_offset, std::uint64_t remote_offset, std::uint64_t bytes) = 0;

  // The same of a side's line (seqno, state, unheard), which is copied here: it lies in the request.
  virtual void write_line(std::uint64_t remote_offset, const Side& line) = 0;

  // Tells the NIC of all requests since the last time.
  virtual void ring() = 0;

  // Takes what the NIC says of requests that are done. Throws NicError if one has failed, each time from then
  // on. Waits for nothing.
  virtual void check() = 0;

  // Waits until all that was asked is done, as before the memory goes. NicError if that takes too long.
  virtual void drain(Duration timeout) = 0;
};

}  // namespace lamina::fhbn::rdma
