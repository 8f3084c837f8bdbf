// A send queue whose NIC is played by the test, one completion at a time: what a NIC that is slow, stuck or
// has failed shows of who posts to it. Exits with 1 on a mismatch.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "expect.hpp"
#include "fhbn/rdma/mlx5_writer.hpp"
#include "fhbn/rdma/order.hpp"
#include "fhbn/rdma/sender.hpp"
#include "softnic/soft_queue.hpp"

using namespace lamina::fhbn;
using namespace lamina::fhbn::rdma;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t kLeast = 8;
constexpr std::uint32_t kQpn = 5;

static_assert(is_sound(8) && is_sound(32768));
static_assert(!is_sound(4) && !is_sound(12) && !is_sound(65536));

// The NIC says that the request which begins at this block is done.
void complete(const QueueMemory& memory, std::uint32_t taken, std::uint32_t block, Syndrome syndrome) {
  const CompletionQueue queue = memory.completions();
  CompletionEntry& entry = queue.entries[taken & (queue.count - 1)];
  const auto kind = syndrome == Syndrome::kNone ? CompletionKind::kRequest : CompletionKind::kRequestError;
  entry.block = big_endian(static_cast<std::uint16_t>(block));
  entry.syndrome = static_cast<std::uint8_t>(syndrome);
  entry.kind_owner =
      static_cast<std::uint8_t>(static_cast<unsigned>(kind) << 4 | ((taken & queue.count) != 0 ? 1u : 0u));
}

// However requests of one to four blocks follow each other: a queue that is full has asked for completions
// that make room for the largest, even if each tells of a request's first block only.
void completions_make_room(std::uint32_t blocks) {
  const QueueMemory memory(blocks);
  const SendQueue queue = memory.send(kQpn);
  SendState state;
  std::minstd_rand random(blocks);
  const std::vector<std::byte> bytes(kLongInline);
  std::uint32_t last_requested = 0, stalls = 0;
  while (stalls < 500) {
    const std::uint32_t size = 1 + random() % kLongInline;
    if (free_blocks(queue, state) >= blocks_of(inline_segments(size))) {
      put_inline<kLongInline>(queue, state, bytes.data(), {}, size);
      if (state.signalled == state.next) last_requested = state.latest;
      continue;
    }
    ++stalls;
    complete(memory, state.taken, last_requested, Syndrome::kNone);
    Completed completed;
    expect(take_completion<HostOrder>(memory.completions(), state, completed), "a completion is not taken");
    expect(free_blocks(queue, state) >= 4, "a queue of " + std::to_string(blocks) +
                                               " blocks stands still with " +
                                               std::to_string(free_blocks(queue, state)) + " of them free");
  }
}

// From its last two blocks to its first two, in either half of the register.
void blueflame_goes_on_at_the_queues_beginning() {
  const QueueMemory memory(kLeast);
  const SendQueue queue = memory.send(kQpn);
  std::vector<std::uint8_t> bytes(kLongInline);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
  SendState state;
  state.next = state.rung = state.signalled = state.done = kLeast - 2;
  for (std::uint32_t half = 0; half < 2; ++half) {
    put_inline<kLongInline>(queue, state, bytes.data(), {1, 2}, kLongInline);
    ring<HostOrder>(queue, state);
    const auto* there = reinterpret_cast<const std::byte*>(queue.registers) + half * queue.half_bytes;
    for (std::uint32_t block = 0; block < 4; ++block) {
      const std::uint32_t at = (state.latest + block) % kLeast;
      expect(std::memcmp(there + block * kBlockBytes, queue.requests + at * kBlockBytes, kBlockBytes) == 0,
             "a register has something else than the queue");
    }
    state.next = state.rung = state.done = state.next + kLeast - 4;  // where this one began
  }
}

// What is done to tell the NIC.
struct Noted {
  enum class Step { kRecord, kRegister, kFence };
  static inline std::vector<Step> steps;
  static void store_release(std::uint32_t*, std::uint32_t) { steps.push_back(Step::kRecord); }
  static void store_register(std::uint64_t*, std::uint64_t) { steps.push_back(Step::kRegister); }
  static void fence_registers() { steps.push_back(Step::kFence); }
};

// A NIC that is rung first may find the record as it was, and forget that it was rung.
void the_record_is_written_before_the_register() {
  using Step = Noted::Step;
  const QueueMemory memory(kLeast);
  const SendQueue queue = memory.send(kQpn);
  SendState state;
  for (const std::size_t requests : {1u, 2u}) {
    for (std::size_t i = 0; i < requests; ++i) put_nothing(queue, state);
    Noted::steps.clear();
    ring<Noted>(queue, state);
    const std::size_t words = requests == 1 ? kBlockBytes / sizeof(std::uint64_t) : 1;  // BlueFlame, or not
    std::vector<Step> wanted(2 + words + 1, Step::kRegister);
    wanted[0] = Step::kRecord;
    wanted[1] = wanted.back() = Step::kFence;
    expect(Noted::steps == wanted, "the NIC is told in another order");
  }
}

// A writer of a queue pair that no NIC looks at.
struct Forsaken {
  static constexpr Duration kPatience = 60s;

  QueueMemory memory{kLeast};
  std::vector<std::byte> bytes = std::vector<std::byte>(4096);
  Mlx5Writer writer{{memory.send(kQpn), memory.completions(), nullptr},
                    {bytes.data(), bytes.size(), 1},
                    {4096, 4096, 2},
                    "the peer",
                    kPatience};

  void put_line() { writer.write_line(0, {1, State::kOpen, 1}); }
  std::uint32_t rung() const { return big_endian(*memory.send(kQpn).doorbell_record); }
};

template <typename Call>
void expect_fault(NicFault fault, Call call) {
  try {
    call();
  } catch (const NicError& error) {
    expect(error.fault == fault, std::string("another fault: ") + error.what());
    return;
  }
  fail("nothing was thrown");
}

void waiting_for_a_stuck_queue_ends_in_time() {
  Forsaken end;
  for (std::uint32_t i = 0; i < kLeast; ++i) end.put_line();
  const auto begun = Clock::now();
  expect_fault(NicFault::kStuck, [&] { end.writer.drain(10ms); });
  expect(Clock::now() - begun < Forsaken::kPatience / 2, "a full queue was waited for all the same");
}

// A queue with room for one message, in which it stays.
struct ForsakenSender {
  QueueMemory memory{kLeast};
  std::shared_ptr<Segment> mirror = Segment::create({64, 1024, 7, 0});
  std::shared_ptr<Mlx5Writer> writer = std::make_shared<Mlx5Writer>(
      QueuePair{memory.send(kQpn), memory.completions(), nullptr},
      LocalMemory{static_cast<const std::byte*>(mirror->memory()), mirror->bytes(), 1},
      RemoteMemory{0, mirror->bytes(), 2}, "the peer", Forsaken::kPatience);
  rdma::Sender sender{mirror, writer, std::make_shared<Peer>("the peer"), Duration::zero()};

  bool send(Duration timeout, bool interrupted = false) {
    const std::function<bool()> stop = [=] { return interrupted; };
    const std::byte bytes[64]{};
    const std::span<const std::byte> parts[]{bytes};
    return sender.send(parts, {timeout, stop});
  }
};

void a_sender_waits_for_room_within_its_timeout() {
  ForsakenSender end;
  expect(end.sender.is_ready() && end.send(0ms), "the first message was not sent");
  expect(!end.sender.is_ready(), "a message would have to wait, and is said not to");
  const auto begun = Clock::now();
  try {
    end.send(10ms);
    fail("a message was sent through a queue that stands still");
  } catch (const DeadlinePassed&) {
  }
  expect(!end.send(Forsaken::kPatience, true), "an interruption was not heard");
  end.sender.close();
  expect(Clock::now() - begun < Forsaken::kPatience / 2, "a full queue was waited for all the same");
  expect(end.sender.next_seqno() == 1, "what was not sent is counted");
}

void no_request_is_made_for_no_bytes() {
  Forsaken end;
  end.writer.write(0, 0, 0);
  expect(end.writer.state().next == 0, "a request was made for nothing");
}

void a_queue_that_has_failed_is_not_rung() {
  Forsaken end;
  end.put_line();
  end.writer.ring();
  end.put_line();
  complete(end.memory, 0, 0, Syndrome::kRemoteAccess);
  expect_fault(NicFault::kRemoteAccess, [&] { end.writer.check(); });
  expect_fault(NicFault::kRemoteAccess, [&] { end.writer.ring(); });
  expect_fault(NicFault::kRemoteAccess, [&] { end.put_line(); });
  expect_fault(NicFault::kRemoteAccess, [&] { end.writer.drain(10ms); });
  expect(end.rung() == 1, "the NIC was rung for after it had failed");
}

}  // namespace

int main() {
  for (std::uint32_t blocks = kLeast; blocks <= 256; blocks *= 2) completions_make_room(blocks);
  blueflame_goes_on_at_the_queues_beginning();
  the_record_is_written_before_the_register();
  waiting_for_a_stuck_queue_ends_in_time();
  a_sender_waits_for_room_within_its_timeout();
  no_request_is_made_for_no_bytes();
  a_queue_that_has_failed_is_not_rung();
  std::puts("NIC's queue: ok");
}
