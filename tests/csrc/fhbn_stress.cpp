// Both ends of a channel as two threads over one mapping, so that ThreadSanitizer sees what orders them:
// random messages, checked byte for byte, through rings of all shapes. Exits with 1 on a mismatch.

#include <algorithm>
#include <cstdio>
#include <thread>

#include "fhbn/errors.hpp"
#include "fhbn_messages.hpp"

namespace {

using namespace fhbn_test;

enum class Slow { kNone, kSender, kReceiver };

struct Course {
  std::uint32_t slots = 2;
  Duration spin = 0us;
  bool release_elsewhere = false;  // messages are given back by a third thread
  std::uint64_t messages = 25'000;
  std::uint64_t message_bytes = 1000;
  std::uint64_t first = 0;
  Slow slow = Slow::kNone;
};

// A load on one side, not a way to order them.
void dawdle(Random& random) {
  if (random.one_in(4)) std::this_thread::sleep_for(std::chrono::microseconds(random.below(200)));
}

void send_one(Sender& sender, const Messages& messages, Random& random) {
  const std::uint64_t seqno = sender.next_seqno();
  const Message message = messages.at(seqno);
  bool sent = false;
  if (random.one_in(8)) {
    try {
      sent = sender.send(message, {std::chrono::microseconds(random.below(60)), kNever});
      expect(sent, "a send was interrupted by nobody");
    } catch (const DeadlinePassed&) {
    }
  } else if (random.one_in(8)) {
    sent = sender.send(message, {kLong, kAtOnce});
  }
  expect(sender.next_seqno() == seqno + (sent ? 1 : 0), "a send that failed counts, or one that did not");
  if (!sent) expect(sender.send(message, kPatient), "a send was interrupted by nobody");
  expect(sender.next_seqno() - sender.consumed() <= sender.segment().geometry().slots,
         "a slot was used twice");
}

Arrived receive_one(Receiver& receiver, Random& random) {
  std::optional<Arrived> arrived;
  if (random.one_in(8)) {
    try {
      arrived = receiver.receive({std::chrono::microseconds(random.below(60)), kNever});
      expect(arrived.has_value(), "a receive was interrupted by nobody");
    } catch (const DeadlinePassed&) {
    }
  } else if (random.one_in(8)) {
    arrived = receiver.receive({kLong, kAtOnce});
  }
  if (!arrived) arrived = receiver.receive(kPatient);
  expect(arrived.has_value(), "a receive was interrupted by nobody");
  return *arrived;
}

bool is_full(const Receiver& receiver) {
  return receiver.next_seqno() - receiver.consumed() >= receiver.segment().geometry().slots;
}

// Everything that was sent, in order, and then that the sender has closed.
void receive_all(Receiver& receiver, const Messages& messages, const Course& course, Random random) {
  Unreleased stored(receiver, messages, random());
  std::optional<Releaser<Receiver>> releaser;
  if (course.release_elsewhere) releaser.emplace(stored);
  for (std::uint64_t i = 0; i < course.messages; ++i) {
    while (is_full(receiver)) {
      if (releaser) {
        std::this_thread::yield();
      } else {
        stored.give_back(stored.take());
      }
    }
    const Arrived arrived = receive_one(receiver, random);
    messages.check(arrived, course.first + i);
    expect_within_slot(receiver.segment(), arrived);
    if (releaser) {
      releaser->add(arrived);
    } else {
      stored.add(arrived);
      if (!random.one_in(3)) stored.give_back(stored.take());
    }
    if (course.slow == Slow::kReceiver) dawdle(random);
  }
  releaser.reset();
  while (!stored.empty()) stored.give_back(stored.take());
  expect_throws<ChannelClosed>([&] { receiver.receive(kPatient); }, "receiving more than was sent");
}

void run(const Course& course, std::uint64_t seed) {
  const auto segment = Segment::create({course.message_bytes, course.slots, 7, course.first});
  const Messages messages(seed, course.message_bytes);
  std::thread sending([&] {
    Random random(seed + 1);
    Sender sender(segment, unwatched("the receiving thread"), course.spin);
    for (std::uint64_t i = 0; i < course.messages; ++i) {
      send_one(sender, messages, random);
      if (course.slow == Slow::kSender) dawdle(random);
    }
  });  // closed with its last messages in the ring
  Receiver receiver(segment, unwatched("the sending thread"), course.spin);
  receive_all(receiver, messages, course, Random(seed + 2));
  sending.join();
  expect(receiver.consumed() == course.first + course.messages, "not everything counts as consumed");
}

// What fits into the ring is received though its sender is gone, and what was given back can be sent.
void closed_with_messages_in_the_ring(std::uint32_t slots) {
  const Messages messages(slots, 300);
  const std::uint64_t first = 0 - std::uint64_t{slots} / 2;
  const auto segment = Segment::create({300, slots, 1, first});
  Receiver receiver(segment, unwatched("the sender"), 0us);
  {
    Sender sender(segment, unwatched("the receiver"), 0us);
    for (std::uint32_t i = 0; i < slots; ++i) {
      expect(sender.is_ready(), "a ring with free slots is not ready");
      expect(sender.send(messages.at(first + i), {0us, kNever}), "a send was interrupted by nobody");
    }
    expect(!sender.is_ready(), "a full ring is ready");
    expect_throws<DeadlinePassed>([&] { sender.send(messages.at(0), {1ms, kNever}); }, "a full ring");
    expect(!sender.send(messages.at(0), {kLong, kAtOnce}), "an interrupted send has sent");
  }
  for (std::uint32_t i = 0; i < slots; ++i) {
    expect(receiver.is_ready(), "a ring with messages is not ready");
    messages.check(*receiver.receive({0us, kNever}), first + i);
  }
  expect_throws<ChannelError>([&] { receiver.receive(kPatient); }, "receiving with all slots held");
  for (std::uint32_t i = slots; i-- > 0;) receiver.give_back(first + i);
  for (int i = 0; i < 2; ++i) {
    expect(receiver.is_ready(), "a closed ring would let its receiver wait");
    expect_throws<ChannelClosed>([&] { receiver.receive(kPatient); }, "a closed ring");
  }
}

// Whoever waits when the other end closes is told so.
void closed_while_waiting(Random& random) {
  const Messages messages(3, 100);
  const Duration spin = random.one_in(2) ? 0us : 50us;
  const auto segment = Segment::create({100, 2, 1, 0});
  const std::uint64_t last = random.below(6);
  if (random.one_in(2)) {
    Receiver receiver(segment, unwatched("the sending thread"), spin);
    std::thread sending([&] {
      Sender sender(segment, unwatched("the receiving thread"), spin);
      for (std::uint64_t i = 0; i < last; ++i) sender.send(messages.at(i), kPatient);
    });
    for (std::uint64_t i = 0; i < last; ++i) {
      messages.check(*receiver.receive(kPatient), i);
      receiver.give_back(i);
    }
    expect_throws<ChannelClosed>([&] { receiver.receive(kPatient); }, "a sender that closed");
    sending.join();
  } else {
    std::thread receiving([&] {
      Receiver receiver(segment, unwatched("the sending thread"), spin);
      for (std::uint64_t i = 0; i < last; ++i) {
        messages.check(*receiver.receive(kPatient), i);
        receiver.give_back(i);
      }
    });
    Sender sender(segment, unwatched("the receiving thread"), spin);
    expect_throws<ChannelClosed>(
        [&] {
          for (std::uint64_t i = 0; i <= last + 2; ++i) sender.send(messages.at(i), kPatient);
        },
        "a receiver that closed");
    expect(sender.is_ready(), "a full ring whose receiver has closed would let its sender wait");
    receiving.join();
  }
}

// A sleeper looks for itself every 20 ms, which would hide that nobody wakes it: this would take minutes
// then.
void sleepers_are_woken() {
  constexpr std::uint64_t kRounds = 2'000;
  const Messages messages(4, 100);
  const auto there = Segment::create({100, 1, 1, 0});
  const auto back = Segment::create({100, 1, 1, 0});
  const auto start = Clock::now();
  std::thread answering([&] {
    Receiver receiver(there, unwatched("the asking thread"), 0us);
    Sender sender(back, unwatched("the asking thread"), 0us);
    for (std::uint64_t i = 0; i < kRounds; ++i) {
      messages.check(*receiver.receive(kPatient), i);
      receiver.give_back(i);
      sender.send(messages.at(i), kPatient);
    }
  });
  Sender sender(there, unwatched("the answering thread"), 0us);
  Receiver receiver(back, unwatched("the answering thread"), 0us);
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    sender.send(messages.at(i), kPatient);
    messages.check(*receiver.receive(kPatient), i);
    receiver.give_back(i);
    expect(Clock::now() - start < kRounds * 10ms, "waiting took as long as if nobody woke the sleepers");
  }
  answering.join();
}

}  // namespace

int main() {
  sleepers_are_woken();
  std::uint64_t seed = 20240601;
  for (const std::uint32_t slots : {1, 2, 8}) {
    closed_with_messages_in_the_ring(slots);
    for (const Duration spin : {Duration(0us), Duration(50us)}) {
      for (const bool elsewhere : {false, true}) {
        Course course{.slots = slots, .spin = spin, .release_elsewhere = elsewhere};
        course.first = 0 - course.messages / 2;  // over 2^64, where seqnos begin again
        run(course, ++seed);
      }
      for (const Slow slow : {Slow::kSender, Slow::kReceiver}) {
        run({.slots = slots, .spin = spin, .messages = 1'000, .slow = slow}, ++seed);
      }
    }
    // Parts of 4 MiB and more, which are copied past the cache.
    run({.slots = slots, .messages = 24, .message_bytes = (9 << 20) + 1}, ++seed);
  }
  Random random(++seed);
  for (int i = 0; i < 1'000; ++i) closed_while_waiting(random);
  std::puts("fhbn_stress: ok");
}
