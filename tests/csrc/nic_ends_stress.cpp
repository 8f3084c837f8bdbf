// Both ends of a channel over softnics of all habits: random messages, checked byte for byte, given back by a
// thread of their own. Exits with 1 on a mismatch.

#include <cstdio>
#include <thread>

#include "fhbn/errors.hpp"
#include "fhbn/ordered.hpp"
#include "fhbn/rdma/receiver.hpp"
#include "fhbn/rdma/sender.hpp"
#include "fhbn/rdma/writer.hpp"
#include "fhbn_messages.hpp"
#include "softnic/soft_writer.hpp"

namespace {

using namespace fhbn_test;
namespace rdma = lamina::fhbn::rdma;

struct Course {
  rdma::SoftHabits habits;
  std::uint32_t slots = 4;
  std::uint64_t message_bytes = 3000;
  std::uint64_t first = 0;
  std::uint64_t messages = 1500;
  Duration spin = 50us;
};

// The ring and its mirror, with a queue pair each, as two processes would have them.
struct Ends {
  explicit Ends(const Course& course)
      : nic(std::make_shared<rdma::SoftNic>(course.habits)),
        ring(Segment::create({course.message_bytes, course.slots, 7, course.first})),
        mirror(Segment::create({course.message_bytes, course.slots, 7, course.first})) {
    const auto reading = std::make_shared<rdma::SoftWriter>(nic, ring, ring->bytes());
    const auto writing = std::make_shared<rdma::SoftWriter>(nic, mirror, rdma::Sender::kOfferedBytes);
    reading->connect(mirror, writing->address(), writing->address(), "sender");
    writing->connect(ring, reading->address(), reading->address(), "receiver");
    sender.emplace(mirror, writing, unwatched("receiver"), course.spin);
    receiver.emplace(ring, reading, unwatched("sender"), course.spin);
  }

  std::shared_ptr<rdma::SoftNic> nic;
  std::shared_ptr<Segment> ring;
  std::shared_ptr<Segment> mirror;
  std::optional<rdma::Sender> sender;
  std::optional<rdma::Receiver> receiver;
};

// Who sleeps until it is woken would miss what a NIC writes, and look 20 ms later.
void expect_unheard(const Ends& ends) {
  expect(load_acquire(ends.ring->ring().published.unheard) == rdma::kUnheard &&
             load_acquire(ends.mirror->ring().consumed.unheard) == rdma::kUnheard,
         "a line does not say that nobody is woken for it");
}

void run(const Course& course) {
  const Messages messages(course.habits.seed, course.message_bytes);
  Ends ends(course);
  expect_unheard(ends);
  std::thread sending([&] {
    for (std::uint64_t i = 0; i < course.messages; ++i) {
      expect(ends.sender->send(messages.at(course.first + i), kPatient), "a send was interrupted by nobody");
    }
    ends.sender->close();
  });
  {
    Unreleased stored(*ends.receiver, messages, course.habits.seed);
    Releaser releaser(stored);
    for (std::uint64_t i = 0; i < course.messages; ++i) {
      // All slots may be held for a moment: then there is nothing to wait for.
      while (ends.receiver->next_seqno() - ends.receiver->consumed() >= course.slots)
        std::this_thread::yield();
      const auto arrived = ends.receiver->receive(kPatient);
      expect(arrived.has_value(), "a receive was interrupted by nobody");
      messages.check(*arrived, course.first + i);
      releaser.add(*arrived);
    }
  }
  sending.join();
  expect_unheard(ends);
  expect_throws<ChannelClosed>([&] { ends.receiver->receive(kPatient); }, "a channel that was closed");
  expect(ends.receiver->consumed() == course.first + course.messages, "something was not given back");
}

}  // namespace

int main() {
  constexpr std::uint64_t kNearlyAround = ~std::uint64_t{0} - 700;
  run({.habits = {}});
  run({.habits = {.drops_blueflame = true, .seed = 2}, .slots = 1});
  run({.habits = {.reorders = true, .seed = 3}, .slots = 8, .first = kNearlyAround});
  run({.habits = {.drops_blueflame = true, .reorders = true, .seed = 4}, .slots = 2, .spin = 0us});
  run({.habits = {.seed = 5}, .slots = 16, .message_bytes = 200'000, .messages = 200});
  std::puts("all messages arrived whole, in order and once");
}
