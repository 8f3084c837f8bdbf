// What can go wrong between a queue and a NIC: each failure arrives as one NicError that says what, behind
// what was done before it; nothing after it is done. Requests that make no sense are refused by the softnic,
// whoever wrote them. Exits with 1 on a mismatch.

#include <cstring>
#include <thread>

#include "fhbn/ordered.hpp"
#include "softnic_pair.hpp"

namespace {

using namespace softnic_test;

constexpr std::size_t kBytes = 8192;
constexpr std::uint32_t kBlocks = 16;

struct Pair {
  explicit Pair(const SoftHabits& habits = {})
      : left(kBytes, habits), right(kBytes, habits), queues(left.nic.connect(kBlocks, right.as_peer())) {
    for (std::size_t i = 0; i < kBytes; ++i) left.begin()[i] = static_cast<std::byte>(i * 13 + 1);
  }
  Mlx5Writer writer(const LocalMemory& local, const RemoteMemory& remote) {
    return Mlx5Writer(queues, local, remote, "attention worker 0", kLong);
  }
  bool has_arrived(std::size_t at, std::size_t bytes) const {
    return std::memcmp(left.begin() + at, right.begin() + at, bytes) == 0;
  }
  bool is_untouched(std::size_t at, std::size_t bytes) const {
    for (std::size_t i = at; i < at + bytes; ++i) {
      if (right.begin()[i] != std::byte{0}) return false;
    }
    return true;
  }

  Host left, right;
  QueuePair queues;
};

void expect_fault(Mlx5Writer& writer, NicFault fault, const std::string& part) {
  std::string first;
  for (int again = 0; again < 3; ++again) {
    try {
      writer.drain(kLong);
      fail("no NicError: " + part);
    } catch (const NicError& error) {
      const std::string notified = error.what();
      expect(error.fault == fault, "another fault than expected: " + notified);
      expect(notified.find(part) != std::string::npos &&
                 notified.find("attention worker 0") != std::string::npos,
             notified);
      expect(first.empty() || first == notified, "the same failure is told in two ways");
      first = notified;
    }
  }
}

// A write that the NIC refuses, of which nothing is done.
void expect_refused(Pair& pair, const LocalMemory& local, const RemoteMemory& remote, std::uint64_t from,
                    std::uint64_t to, NicFault fault, const std::string& part) {
  Mlx5Writer writer = pair.writer(local, remote);
  writer.write(from, to, 1000);
  writer.ring();
  expect_fault(writer, fault, part);
  expect(pair.is_untouched(0, kBytes), "some of a write was done that was refused");
}

// One good write, then a bad one, then a good one that must not be done.
void expect_between(Pair& pair, Mlx5Writer writer, const std::function<void()>& spoil, NicFault fault,
                    const std::string& part) {
  writer.write(0, 0, 1000);
  writer.ring();
  writer.drain(kLong);
  expect(pair.has_arrived(0, 1000), "what was written before the failure is not there");
  spoil();
  writer.write(1000, 1000, 1000);
  writer.write(2000, 2000, 1000);
  writer.ring();
  expect_fault(writer, fault, part);
  expect(pair.is_untouched(1000, 2000), "something was written by or behind a request that failed");
}

void wrong_keys() {
  for (const bool reorders : {false, true}) {
    Pair pair({.reorders = reorders});
    RemoteMemory remote = pair.right.remote();
    remote.key ^= 1;
    expect_refused(pair, pair.left.local, remote, 0, 0, NicFault::kRemoteAccess, "refuses a write");
  }
  Pair pair;
  LocalMemory local = pair.left.local;
  local.key ^= 1;
  expect_refused(pair, local, pair.right.remote(), 0, 0, NicFault::kLocalAccess, "may not read");
}

// The writer refuses at once what goes beyond the memory that it was told of; the NIC, what goes beyond the
// memory.
void out_of_bounds() {
  Pair pair;
  RemoteMemory remote = pair.right.remote();
  Mlx5Writer careful = pair.writer(pair.left.local, remote);
  expect_throws<std::out_of_range>([&] { careful.write(0, kBytes - 8, 9); },
                                   "a write beyond the peer's memory");
  expect_throws<std::out_of_range>([&] { careful.write(kBytes - 8, 0, 9); },
                                   "a write from beyond the memory");
  expect_throws<std::out_of_range>([&] { careful.write(0, ~std::uint64_t{0}, 2); },
                                   "a write that wraps around");
  careful.drain(kLong);  // none of them has become a request

  Pair other;
  remote = other.right.remote();
  remote.bytes += 8;
  expect_refused(other, other.left.local, remote, 0, kBytes - 992, NicFault::kRemoteAccess,
                 "refuses a write");

  Pair third;
  LocalMemory local = third.left.local;
  local.bytes += 8;
  expect_refused(third, local, third.right.remote(), kBytes - 992, 0, NicFault::kLocalAccess, "may not read");
}

void lost_while_in_use() {
  const auto between = [](const std::function<void(Pair&)>& spoil, NicFault fault, const std::string& part) {
    Pair pair;
    expect_between(
        pair, pair.writer(pair.left.local, pair.right.remote()), [&] { spoil(pair); }, fault, part);
  };
  const auto queue = [](Pair& pair) { return pair.left.nic.queue(pair.queues.send.qpn); };
  between([](Pair& pair) { pair.left.nic.deregister(pair.left.local.key); }, NicFault::kLocalAccess,
          "may not read");
  between([&](Pair& pair) { queue(pair)->unplug(); }, NicFault::kRetryExceeded, "has not answered");
  between([&](Pair& pair) { queue(pair)->fail(); }, NicFault::kFlushed, "has failed and sends nothing more");
}

// After a failure the memories are still good: a new queue pair goes on with them.
void another_queue_pair() {
  Pair pair;
  pair.left.nic.queue(pair.queues.send.qpn)->unplug();
  Mlx5Writer writer = pair.writer(pair.left.local, pair.right.remote());
  writer.write(0, 0, 1000);
  writer.ring();
  expect_fault(writer, NicFault::kRetryExceeded, "has not answered");
  pair.queues = pair.left.nic.connect(kBlocks, pair.right.as_peer());
  Mlx5Writer next = pair.writer(pair.left.local, pair.right.remote());
  next.write(0, 0, 1000);
  next.ring();
  next.drain(kLong);
  expect(pair.has_arrived(0, 1000), "a new queue pair does not work after another one's failure");
}

// Two queue pairs that are each other's peers, as those of a channel's ends are.
struct Connected {
  Connected() : left(kBytes, {}), right(kBytes, {}) {
    const Failed of_left = std::make_shared<std::uint32_t>(0), of_right = std::make_shared<std::uint32_t>(0);
    there = left.nic.connect(kBlocks, {right.begin(), right.remote(), right.memory, of_right}, of_left);
    back = right.nic.connect(kBlocks, {left.begin(), left.remote(), left.memory, of_left}, of_right);
  }
  void expect_left_failure(const RemoteMemory& notified, NicFault fault, const std::string& part) {
    expect_failure(there, left, notified, fault, part);
  }
  void expect_right_failure(NicFault fault, const std::string& part) {
    expect_failure(back, right, left.remote(), fault, part);
  }
  static void expect_failure(const QueuePair& pair, const Host& self, const RemoteMemory& notified,
                             NicFault fault, const std::string& part) {
    Mlx5Writer writer(pair, self.local, notified, "attention worker 0", kLong);
    writer.write(0, 0, 100);
    writer.ring();
    expect_fault(writer, fault, part);
  }

  Host left, right;
  QueuePair there, back;
};

// A failure on one side is heard of on the other one, when that asks for something.
void failures_of_the_peer() {
  {
    Connected pair;
    RemoteMemory wrong = pair.right.remote();
    wrong.key ^= 1;
    pair.expect_left_failure(wrong, NicFault::kRemoteAccess, "refuses a write");
    pair.expect_right_failure(NicFault::kFlushed, "has failed and sends nothing more");
  }
  {
    Connected pair;
    pair.right.nic.queue(pair.back.send.qpn)->fail();
    pair.expect_left_failure(pair.right.remote(), NicFault::kRetryExceeded, "has not answered");
    pair.expect_right_failure(NicFault::kFlushed, "has failed and sends nothing more");
  }
  {
    Connected pair;
    pair.back = {};
    pair.expect_left_failure(pair.right.remote(), NicFault::kRetryExceeded, "has not answered");
  }
}

// Posts one request of a caller's making and waits for what comes of it.
Completed answer_to(Pair& pair, const std::function<void(WriteRequest&)>& spoil) {
  SendState state;
  const SendQueue& queue = pair.queues.send;
  WriteRequest request{};
  request.control =
      control_segment(Opcode::kRdmaWrite, 0, queue.qpn, WriteRequest::kSegments, Completion::kRequested);
  request.remote = remote_address_segment(pair.right.remote().address, pair.right.remote().key);
  request.data = data_segment(reinterpret_cast<std::uintptr_t>(pair.left.begin()), pair.left.local.key, 64);
  spoil(request);
  put(queue, state, request, WriteRequest::kSegments);
  ring<HostOrder>(queue, state);
  Completed completed;
  const auto end = Clock::now() + kLong;
  while (!take_completion<HostOrder>(pair.queues.completions, state, completed)) {
    expect(Clock::now() < end, "a request was never answered");
    std::this_thread::yield();
  }
  return completed;
}

void requests_without_sense() {
  for (const bool drops : {false, true}) {
    const auto expect_refused = [&](const char* what, const std::function<void(WriteRequest&)>& spoil) {
      Pair pair({.drops_blueflame = drops});
      const Completed completed = answer_to(pair, spoil);
      expect(completed.failed && completed.syndrome == Syndrome::kLocalOperation, what);
      expect(pair.is_untouched(0, kBytes), what);
    };
    Pair pair({.drops_blueflame = drops});
    expect(!answer_to(pair, [](WriteRequest&) {}).failed, "a good request was refused");
    expect(pair.has_arrived(0, 64), "a good request was not done");
    const auto control = [](Opcode opcode, std::uint32_t block, std::uint32_t qpn, std::uint32_t segments) {
      return control_segment(opcode, block, qpn, segments, Completion::kRequested);
    };
    const auto qpn_of = [](const WriteRequest& request) {
      return big_endian(request.control.queue_segments) >> 8;
    };
    expect_refused("another block's number was accepted", [&](WriteRequest& request) {
      request.control = control(Opcode::kRdmaWrite, 1, qpn_of(request), 3);
    });
    expect_refused("another queue pair's request was accepted", [&](WriteRequest& request) {
      request.control = control(Opcode::kRdmaWrite, 0, qpn_of(request) ^ 1, 3);
    });
    expect_refused("an unknown opcode was accepted", [&](WriteRequest& request) {
      request.control = control(static_cast<Opcode>(0x3f), 0, qpn_of(request), 3);
    });
    expect_refused("a request of no segments was accepted", [&](WriteRequest& request) {
      request.control = control(Opcode::kRdmaWrite, 0, qpn_of(request), 0);
    });
    expect_refused("a request without data was accepted", [&](WriteRequest& request) {
      request.control = control(Opcode::kRdmaWrite, 0, qpn_of(request), 2);
    });
    expect_refused("a request was accepted of which not all blocks were posted", [&](WriteRequest& request) {
      request.control = control(Opcode::kRdmaWrite, 0, qpn_of(request), 5);
    });
    expect_refused("more bytes were accepted than lie in the request",
                   [&](WriteRequest& request) { request.data.bytes = big_endian(kInline | 400u); });
  }
}

// A completion that nobody has taken is never written over: what comes after it waits.
void full_completion_queue() {
  Pair pair;
  const SendQueue& queue = pair.queues.send;
  SendState state;
  const std::uint32_t count = pair.queues.completions.count;
  std::uint32_t posted = 0;
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < count / 2; ++i, ++posted) put_nothing(queue, state);
    ring<HostOrder>(queue, state);
    // Nothing was taken so far; the queue would have room for no more than its own blocks.
    if (round == 1) break;
  }
  const auto end = Clock::now() + kLong;
  while (pair.left.nic.queue(queue.qpn)->counts().completions < posted) {
    expect(Clock::now() < end, "the softnic does not complete");
    std::this_thread::yield();
  }
  Completed completed;
  for (std::uint32_t i = 0; i < posted; ++i) {
    expect(take_completion<HostOrder>(pair.queues.completions, state, completed) && !completed.failed,
           "a completion is missing");
  }
  expect(!take_completion<HostOrder>(pair.queues.completions, state, completed), "a completion too many");
  expect(state.done == state.next && free_blocks(queue, state) == kBlocks, "not all is done");
}

}  // namespace

int main() {
  wrong_keys();
  out_of_bounds();
  lost_while_in_use();
  another_queue_pair();
  failures_of_the_peer();
  requests_without_sense();
  full_completion_queue();
}
