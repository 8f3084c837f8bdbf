#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "fhbn/errors.hpp"
#include "fhbn/segment.hpp"
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
  kStuck,          // the NIC has not completed requests in time
  kOther,
};

// The NIC has given up. The channel cannot be used any more; another one can be made.
struct NicError : ChannelError {
  NicError(NicFault what, const std::string& sentence) : ChannelError(sentence), fault(what) {}
  NicFault fault;
};

// Writes from this end's memory into the peer's, both registered with their NICs; offsets are from the
// beginning of each. What is written by one writer arrives in that order, so that a line never comes before
// what it announces. For one thread at a time.
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

  // Notifies the NIC of all requests since the last time.
  virtual void ring() = 0;

  // Takes what the NIC says of requests that are done. Throws NicError if one has failed, each time from then
  // on. Waits for nothing.
  virtual void check() = 0;

  // Waits until all requests are done, as before memory is freed. NicError if that takes too long.
  virtual void drain(Duration timeout) = 0;
};

// A NIC writes a line and wakes no thread: a waiter has to look.
inline constexpr std::uint32_t kUnheard = 1;
// How long a closed end waits until its peer's NIC has been notified.
inline constexpr Duration kGoodbye = std::chrono::seconds(1);

// A NIC reports only on its requests, and of a queue pair that has failed, here or at the peer, no
// more than that. So a waiter requests now and then that its line be written once more. Not where
// that would have to wait for room: then the NIC has enough to report.
class Reminder {
public:
  // True once in a while.
  bool is_due() {
    const auto now = Clock::now();
    if (now < next_) return false;
    next_ = now + kEvery;
    return true;
  }

private:
  static constexpr Duration kEvery = std::chrono::seconds(1);
  Clock::time_point next_ = Clock::now() + kEvery;
};

inline std::uint64_t offset_in(const Segment& segment, const void* place) {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(place) -
                                    static_cast<const std::byte*>(segment.memory()));
}

// Notifies the peer by its line that there will be nothing more, and waits until its NIC has that: the queue
// pair may go next, and with it what it was given.
inline void write_goodbye(Writer& writer, std::uint64_t line_offset, std::uint64_t seqno) {
  try {
    if (!writer.has_room()) writer.drain(kGoodbye);
    writer.write_line(line_offset, {seqno, State::kClosed, kUnheard});
    writer.ring();
    writer.drain(kGoodbye);
  } catch (const ChannelError&) {
    // The NIC has failed, or was never connected: then the peer learns of this end by the connection over
    // which the two have met.
  }
}

}  // namespace lamina::fhbn::rdma
