// Kills either end of a channel, after every instruction of a transfer and then at random under load: no
// message may be torn, lost or received twice, the end that survives must be told, and nothing may be left
// behind. Exits with 1 on a mismatch.

#include <sys/ptrace.h>
#include <sys/time.h>

#include <cstdio>

#include "fhbn/errors.hpp"
#include "fhbn/ordered.hpp"
#include "fhbn_children.hpp"
#include "fhbn_messages.hpp"

namespace {

using namespace fhbn_test;

constexpr std::uint64_t kBytes = 192;
const Messages kMessages(11, kBytes);

std::shared_ptr<const Peer> watched(const Child& child) {
  return std::shared_ptr<const Peer>(new Peer("the child", {child.descriptor()}));
}

// What a receiver has consumed, and so what it wants next: it survives the receiver, as a disk would.
struct Journal {
  std::uint64_t next;
  std::uint64_t copied;  // of the last message, which is judged only where that is not stepped through
  std::byte copy[2 * kPartAlignment];
};

// Two small parts, written out and not drawn, to keep the transfer short.
struct Pair {
  std::array<std::uint64_t, 3> small;
  std::array<std::uint64_t, 8> large;

  explicit Pair(std::uint64_t seqno) {
    Random random(seqno);
    for (auto& word : small) word = random();
    for (auto& word : large) word = random();
  }
  std::array<std::span<const std::byte>, 2> parts() const {
    return {std::as_bytes(std::span(small)), std::as_bytes(std::span(large))};
  }
  bool equals(const void* a, const void* b) const {
    return std::memcmp(a, small.data(), sizeof small) == 0 && std::memcmp(b, large.data(), sizeof large) == 0;
  }
  void check(const Arrived& arrived, std::uint64_t seqno) const {
    expect(arrived.seqno == seqno, "another message than the next came");
    expect(arrived.count == 2 && arrived.parts[0].size() == sizeof small &&
               arrived.parts[1].size() == sizeof large &&
               equals(arrived.parts[0].data(), arrived.parts[1].data()),
           "a torn message came");
  }
};

// Runs `call`, and does not return before a message was there or the peer's end was noticed.
template <typename Call>
bool before_the_peer_is_lost(const Call& call) {
  const auto start = Clock::now();
  while (true) {
    try {
      call(Patience{1ms, kNever});  // short, to be quick with many; each wait looks whether the peer lives
      return true;
    } catch (const PeerLost&) {
      return false;
    } catch (const DeadlinePassed&) {
      expect(Clock::now() - start < 30s, "the end of a peer was not noticed");
    }
  }
}

// --- Instruction by instruction ---

// In the child: stops before and after `transfer`, for its parent to step through what lies between.
template <typename Transfer>
void to_be_stepped(const Transfer& transfer) {
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(1);
  ::raise(SIGSTOP);
  transfer();
  ::raise(SIGSTOP);
}

bool can_trace() {
  Child child([] { to_be_stepped([] {}); });
  return WIFSTOPPED(child.wait(0));
}

// Lets `child` do `steps` instructions, or fewer where its transfer ends before. Then it is killed: whether
// it was in the midst of the transfer.
bool killed_after(Child& child, std::uint64_t steps) {
  int status = child.wait(0);
  expect(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "a child did not get to its transfer");
  bool done = false;
  for (std::uint64_t step = 0; step < steps && !done; ++step) {
    expect(::ptrace(PTRACE_SINGLESTEP, child.pid(), nullptr, nullptr) == 0, "a child cannot be stepped");
    status = child.wait(0);
    expect(WIFSTOPPED(status), "a child ended in its transfer");
    done = WSTOPSIG(status) == SIGSTOP;
  }
  child.kill();
  child.expect_killed();
  return !done;
}

// Kills a transfer after each of its instructions. `killed_at` does it once and returns whether it had ended.
template <typename KilledAt>
void after_every_instruction(const char* transfer, const KilledAt& killed_at) {
  std::uint64_t steps = 0;
  while (killed_at(steps)) ++steps;
  expect(steps > 50, "a transfer of hardly any instructions was stepped through");
  std::printf("fhbn_kill_stress: %s was killed after each of %llu instructions\n", transfer,
              static_cast<unsigned long long>(steps));
}

// `asleep`: the other end seems to sleep, so that the transfer wakes it.
void senders_killed_at_every_instruction(bool asleep) {
  std::uint64_t wanted = 0;
  std::uint64_t nothing = 0;
  after_every_instruction("a sender", [&](std::uint64_t steps) {
    const auto epoch = static_cast<std::uint32_t>(steps);
    const auto segment = Segment::create({kBytes, 2, epoch, wanted});
    segment->ring().receiver.flag = asleep;
    const Pair message(wanted);
    Child child([&] {
      Sender sender(segment, unwatched("the parent"), 0us);
      const auto parts = message.parts();
      to_be_stepped([&] { sender.send(parts, kPatient); });
    });
    Receiver receiver(segment, watched(child), 0us);
    const bool midst = killed_after(child, steps);
    const bool came = before_the_peer_is_lost(
        [&](const Patience& patience) { message.check(*receiver.receive(patience), wanted); });
    expect(came || midst, "a message that was sent did not come");
    wanted += came;
    nothing += !came;
    if (came) expect_throws<PeerLost>([&] { receiver.receive(kPatient); }, "a sender that was killed");
    expect(receiver.next_seqno() == wanted, "another message is wanted than the next");
    return midst;
  });
  expect(wanted > 0 && nothing > 0, "senders were killed only before or only after they had sent");
}

// Receives, copies to the journal, notes there that it has, gives back.
void consume(Receiver& receiver, Journal& journal) {
  const auto arrived = receiver.receive(kPatient);
  std::memcpy(journal.copy, arrived->parts[0].data(), arrived->parts[0].size());
  std::memcpy(journal.copy + kPartAlignment, arrived->parts[1].data(), arrived->parts[1].size());
  store_release(journal.copied, arrived->seqno);
  store_release(journal.next, arrived->seqno + 1);
  receiver.give_back(arrived->seqno);
}

void receivers_killed_at_every_instruction(bool asleep) {
  const Shared<Journal> journal;
  std::uint64_t given_back = 0;
  std::uint64_t noted_only = 0;
  after_every_instruction("a receiver", [&](std::uint64_t steps) {
    const std::uint64_t first = journal->next;
    const auto epoch = static_cast<std::uint32_t>(steps);
    const auto segment = Segment::create({kBytes, 2, epoch, first});
    segment->ring().sender.flag = asleep;
    Child child([&] {
      Receiver receiver(segment, unwatched("the parent"), 0us);
      to_be_stepped([&] { consume(receiver, *journal); });
    });
    Sender sender(segment, watched(child), 0us);
    for (std::uint64_t i = 0; i < 2; ++i) sender.send(Pair(first + i).parts(), kPatient);
    const bool midst = killed_after(child, steps);

    const std::uint64_t consumed = journal->next - first;
    expect(consumed <= 1, "a message was consumed twice, or one before it came");
    if (consumed == 1) {
      expect(journal->copied == first && Pair(first).equals(journal->copy, journal->copy + kPartAlignment),
             "a torn message was consumed");
    }
    const std::uint64_t credits = sender.consumed() - first;
    expect(credits <= consumed, "a slot was given back before its message was consumed");
    expect(midst || credits == 1, "a slot that was given back is not free");
    const Pair more(first + 2);
    const bool sent = before_the_peer_is_lost([&](const Patience& patience) {
      expect(sender.send(more.parts(), patience), "a send was interrupted by nobody");
    });
    expect(sent == (credits == 1), "a message was sent without a credit, or not with one");
    given_back += credits;
    noted_only += consumed - credits;
    return midst;
  });
  expect(given_back > 0 && noted_only > 0, "receivers were killed only before or only after they gave back");
}

// --- At random, under load ---

pid_t to_be_killed = 0;

// Kills `child` some time from now, whatever is being done then.
void kill_later(const Child& child, std::uint64_t us) {
  to_be_killed = child.pid();
  std::signal(SIGALRM, [](int) { ::kill(to_be_killed, SIGKILL); });
  const itimerval later{{}, {0, static_cast<suseconds_t>(1 + us)}};
  expect(::setitimer(ITIMER_REAL, &later, nullptr) == 0, "no timer");
}

Duration any_spin(Random& random) { return random.one_in(2) ? 0us : 20us; }

struct Streamed {
  std::uint64_t wanted = 0;  // by the parent, where children send
  Shared<Journal> journal;   // what children want, where they receive
};

void sender_killed_at_random(Streamed& streamed, std::uint32_t epoch, Random& random) {
  const std::uint32_t slots = 1u << random.below(4);
  const auto segment = Segment::create({kBytes, slots, epoch, streamed.wanted});
  const Duration spin = any_spin(random);
  Child child([&] {
    Sender sender(segment, unwatched("the parent"), spin);
    while (true) sender.send(kMessages.at(sender.next_seqno()), kPatient);
  });
  kill_later(child, random.below(5'000));
  Receiver receiver(segment, watched(child), spin);
  while (before_the_peer_is_lost([&](const Patience& patience) {
    const auto arrived = receiver.receive(patience);
    kMessages.check(*arrived, streamed.wanted);
    ++streamed.wanted;
    receiver.give_back(arrived->seqno);
  })) {
  }
  child.expect_killed();
  expect(receiver.next_seqno() == streamed.wanted, "another message is wanted than the next");
  expect(segment->ring().published.seqno == streamed.wanted, "a message that was sent did not come");
}

void receiver_killed_at_random(Streamed& streamed, std::uint32_t epoch, Random& random) {
  Journal& journal = *streamed.journal;
  const std::uint64_t first = journal.next;
  const std::uint32_t slots = 1u << random.below(4);
  const auto segment = Segment::create({kBytes, slots, epoch, first});
  const Duration spin = any_spin(random);
  Child child([&] {
    Receiver receiver(segment, unwatched("the parent"), spin);
    while (true) {
      const auto arrived = receiver.receive(kPatient);
      kMessages.check(*arrived, journal.next);
      store_release(journal.next, arrived->seqno + 1);
      receiver.give_back(arrived->seqno);
    }
  });
  kill_later(child, random.below(5'000));
  Sender sender(segment, watched(child), spin);
  while (before_the_peer_is_lost([&](const Patience& patience) {
    expect(sender.send(kMessages.at(sender.next_seqno()), patience), "a send was interrupted by nobody");
    expect(sender.consumed() <= load_acquire(journal.next), "a slot was given back before it was consumed");
  })) {
  }
  child.expect_killed();
  const std::uint64_t lag = journal.next - sender.consumed();
  expect(lag <= 1, "what was consumed before the last message was not given back");
  expect(sender.next_seqno() == sender.consumed() + slots, "a sender lost a free slot");
}

}  // namespace

int main() {
  const Resources before = Resources::now();
  if (can_trace()) {
    for (const bool asleep : {false, true}) {
      senders_killed_at_every_instruction(asleep);
      receivers_killed_at_every_instruction(asleep);
    }
  } else {
    std::puts(
        "fhbn_kill_stress: this system lets nobody trace: kills only at random, not at every instruction");
  }
  Random random(20240604);
  {
    Streamed streamed;
    for (std::uint32_t round = 0; round < 100; ++round) {
      sender_killed_at_random(streamed, round, random);
      receiver_killed_at_random(streamed, round, random);
    }
    expect(streamed.wanted > 1'000 && streamed.journal->next > 1'000, "hardly anything was sent under load");
    std::printf("fhbn_kill_stress: %llu and %llu messages past 100 kills each\n",
                static_cast<unsigned long long>(streamed.wanted),
                static_cast<unsigned long long>(streamed.journal->next));
    const auto segment = Segment::create({kBytes, 2, 1, 0});
    const Resources with = Resources::now();
    expect(with.rings == before.rings + 1 && with.descriptors == before.descriptors + 1 && !with.named,
           "a ring is not found where this test looks for what was left behind");
  }
  before.expect_no_more_now();
  std::puts("fhbn_kill_stress: ok");
}
