// A peer that writes anything anywhere in the ring, before and while an end uses it: the outcome is a
// message that lies within its slot, or one of the errors of the channel, in time. Meant for a sanitized
// build. Exits with 1 on a mismatch.

#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "fhbn/errors.hpp"
#include "fhbn_evil.hpp"
#include "fhbn_messages.hpp"

namespace {

using namespace fhbn_test;

constexpr std::uint64_t kBytes = 200;

// An end of a channel that nobody waits long for.
struct Channel {
  explicit Channel(std::uint32_t slots, std::uint64_t first = 5)
      : segment(Segment::create({kBytes, slots, 3, first})),
        sender(segment, unwatched("the receiver"), 0us),
        receiver(segment, unwatched("the sender"), 0us) {}

  Ring& ring() const { return segment->ring(); }
  SlotHeader& next_slot() const { return segment->slot(receiver.next_seqno()); }

  std::shared_ptr<Segment> segment;
  Sender sender;
  Receiver receiver;
};

const Patience kHasty{0us, kNever};
const Messages kMessages(9, kBytes);

// Damage of each kind alone, and what must become of it. `Error` is void where it must do no harm.
template <typename Error>
void damaged(const std::string& what, const std::function<void(Channel&)>& damage) {
  Channel channel(2);
  channel.sender.send(kMessages.at(5), kHasty);
  damage(channel);
  if constexpr (std::is_void_v<Error>) {
    kMessages.check(*channel.receiver.receive(kHasty), 5);
    channel.receiver.give_back(5);
    expect(channel.sender.send(kMessages.at(6), kHasty), what + " keeps the sender from sending");
    kMessages.check(*channel.receiver.receive(kHasty), 6);
  } else {
    expect_throws<Error>([&] { channel.receiver.receive(kHasty); }, what);
  }
}

void damage_of_a_message_is_noticed() {
  damaged<Corrupted>("another seqno", [](Channel& c) { c.next_slot().seqno += 2; });
  damaged<Corrupted>("the seqno before 2^64", [](Channel& c) { c.next_slot().seqno = ~std::uint64_t{0}; });
  damaged<Corrupted>("another epoch", [](Channel& c) { c.next_slot().epoch += 1; });
  damaged<Corrupted>("15 parts", [](Channel& c) { c.next_slot().parts = kMostParts + 1; });
  damaged<Corrupted>("2^32 - 1 parts", [](Channel& c) { c.next_slot().parts = ~std::uint32_t{0}; });
  const std::uint64_t room = kBytes;
  for (const std::uint64_t bytes : {room + 1, ~std::uint64_t{0}, std::uint64_t{1} << 63, 0 - room}) {
    damaged<Corrupted>("a part of " + std::to_string(bytes) + " bytes", [&](Channel& c) {
      c.next_slot().parts = 1;
      c.next_slot().bytes[0] = bytes;
    });
    damaged<Corrupted>("a second part of " + std::to_string(bytes) + " bytes", [&](Channel& c) {
      c.next_slot().parts = 2;
      c.next_slot().bytes[0] = kPartAlignment;
      c.next_slot().bytes[1] = bytes;
    });
  }
  damaged<Corrupted>("parts that are too large together", [&](Channel& c) {
    c.next_slot().parts = 3;
    c.next_slot().bytes[0] = room - kPartAlignment - 1;
    c.next_slot().bytes[1] = kPartAlignment + 1;
    c.next_slot().bytes[2] = 1;
  });
}

void damage_of_the_lines_is_noticed() {
  damaged<Corrupted>("more messages than slots", [](Channel& c) { c.ring().published.seqno = 5 + 3; });
  damaged<Corrupted>("fewer messages than none", [](Channel& c) { c.ring().published.seqno = 4; });
  damaged<Corrupted>("a slot that is published again while its message is held", [](Channel& c) {
    c.sender.send(kMessages.at(6), kHasty);
    c.receiver.receive(kHasty);
    c.receiver.receive(kHasty);
    c.next_slot().seqno = 7;
    c.ring().published.seqno = 6;
  });
  damaged<ChannelClosed>("an unknown state", [](Channel& c) {
    c.receiver.receive(kHasty);
    c.ring().published.state = static_cast<State>(77);
  });
  damaged<void>("the preamble, once it was read",
                [](Channel& c) { c.ring().preamble = {1, ~std::uint64_t{0}, 99, 1u << 31, 98}; });
  damaged<void>("flags of sleepers that are awake",
                [](Channel& c) { c.ring().receiver.flag = c.ring().sender.flag = ~std::uint32_t{0}; });
  damaged<void>("the sizes of parts that are not there", [](Channel& c) {
    for (std::uint32_t i = c.next_slot().parts; i < kMostParts; ++i)
      c.next_slot().bytes[i] = ~std::uint64_t{0};
  });
  for (const std::uint64_t consumed : {std::uint64_t{6}, std::uint64_t{4}, ~std::uint64_t{0}}) {
    Channel channel(1);
    channel.sender.send(kMessages.at(5), kHasty);
    channel.ring().consumed.seqno = consumed;
    if (consumed == 6) {
      expect(channel.sender.send(kMessages.at(6), kHasty), "a slot that was given back is not free");
    } else {
      expect_throws<Corrupted>([&] { channel.sender.send(kMessages.at(6), kHasty); }, "impossible credits");
      expect(channel.sender.consumed() == 5, "impossible credits are believed");
    }
  }
}

// Everything a program may do to an end, whatever its peer does: it must take no longer than it was given,
// but for a machine that is busy, and fail as it says.
enum class Outcome { kMessage, kCorrupted, kLate, kClosed, kFull, kOutcomes };

template <typename Call>
Outcome outcome_of(const Call& call) {
  const auto start = Clock::now();
  Outcome outcome = Outcome::kMessage;
  try {
    call();
  } catch (const Corrupted&) {
    outcome = Outcome::kCorrupted;
  } catch (const DeadlinePassed&) {
    outcome = Outcome::kLate;
  } catch (const ChannelClosed&) {
    outcome = Outcome::kClosed;
  } catch (const PeerLost&) {
    fail("a peer that nobody watches was lost");
  } catch (const ChannelError&) {
    outcome = Outcome::kFull;  // all slots are held
  }
  expect(Clock::now() - start < 20s, "a call kept on far beyond its deadline");
  return outcome;
}

Outcome receive(Receiver& receiver, Duration timeout) {
  return outcome_of([&] {
    const auto arrived = receiver.receive({timeout, kNever});
    expect(arrived.has_value(), "a receive was interrupted by nobody");
    expect_within_slot(receiver.segment(), *arrived);
    std::byte all{};
    for (std::uint32_t i = 0; i < arrived->count; ++i) {
      for (const std::byte b : arrived->parts[i]) all |= b;
    }
    [[maybe_unused]] static volatile std::byte observed;
    observed = all;
    receiver.give_back(arrived->seqno);
  });
}

Outcome send(Sender& sender, Duration timeout) {
  return outcome_of([&] {
    expect(sender.send(kMessages.at(sender.next_seqno()), {timeout, kNever}), "a send was interrupted");
  });
}

class Outcomes {
public:
  void add(Outcome outcome) { ++observed_[static_cast<std::size_t>(outcome)]; }
  // A fuzzer whose damage is all of one kind would test little.
  void expect_all(std::initializer_list<Outcome> outcomes, const char* of) const {
    for (const Outcome outcome : outcomes) {
      expect(observed_[static_cast<std::size_t>(outcome)] > 0,
             std::string(of) + " never had outcome " + std::to_string(static_cast<int>(outcome)));
    }
  }

private:
  std::array<std::uint64_t, static_cast<std::size_t>(Outcome::kOutcomes)> observed_{};
};

// Damage between two calls.
void damaged_at_random(std::uint64_t seed) {
  Random random(seed);
  Outcomes received;
  Outcomes sent;
  for (int round = 0; round < 3'000; ++round) {
    Channel channel(1u << random.below(4), random.one_in(2) ? random() : 0 - random.below(4));
    Evil evil(*channel.segment, random());
    for (int step = 0; step < 8; ++step) {
      if (random.one_in(2)) evil.write_something(channel.receiver.next_seqno());
      const Duration timeout = random.one_in(64) ? Duration(50us) : Duration(0us);
      if (random.one_in(2)) {
        sent.add(send(channel.sender, timeout));
      } else {
        received.add(receive(channel.receiver, timeout));
      }
      channel.sender.is_ready();
      channel.receiver.is_ready();
    }
  }
  using enum Outcome;
  received.expect_all({kMessage, kCorrupted, kLate, kClosed}, "a receiver");
  sent.expect_all({kMessage, kCorrupted, kLate, kClosed}, "a sender");
}

// Damage by another process all the while. It is told where the end is, to damage what is looked at next.
void damaged_meanwhile(std::uint64_t seed) {
  Random random(seed);
  Outcomes received;
  Outcomes sent;
  for (int round = 0; round < 12; ++round) {
    const auto segment = Segment::create({kBytes, 1u << random.below(3), 3, random()});
    const EvilProcess evil(*segment, random());
    const auto end = Clock::now() + 150ms;
    while (Clock::now() < end) {
      // A channel that was corrupted is not used further.
      Receiver receiver(segment, unwatched("the sender"), 0us);
      Sender sender(segment, unwatched("the receiver"), 20us);
      for (int step = 0; step < 16; ++step) {
        evil.look_at(round % 2 == 0 ? receiver.next_seqno() : sender.next_seqno() - 1);
        if (round % 2 == 0) {
          received.add(receive(receiver, 200us));
        } else {
          sent.add(send(sender, 200us));
        }
      }
    }
  }
  using enum Outcome;
  received.expect_all({kMessage, kCorrupted, kClosed}, "a receiver with an evil peer");
  sent.expect_all({kMessage, kCorrupted, kClosed}, "a sender with an evil peer");
}

}  // namespace

int main() {
  std::signal(SIGALRM, [](int) {
    constexpr char kSentence[] = "fhbn_fuzz: a call did not return\n";
    [[maybe_unused]] const auto written = ::write(2, kSentence, sizeof kSentence - 1);
    ::_exit(1);
  });
  ::alarm(100);
  damage_of_a_message_is_noticed();
  damage_of_the_lines_is_noticed();
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    std::fprintf(stderr, "fhbn_fuzz: seed %d\n", static_cast<int>(seed));  // the last one is what went wrong
    damaged_at_random(seed);
    damaged_meanwhile(seed);
  }
  std::puts("fhbn_fuzz: ok");
}
