// Two threads send messages through two softnics, with the same work requests that a NIC would be given:
// payload, then the line that tells of it, behind one doorbell. Every byte is checked when the line has come,
// so that a softnic that reorders all it may shows whether the order that is counted on is asked for. Queues
// of all sizes come around many times, and block numbers beyond 16 bits. Exits with 1 on a mismatch.

#include <cstring>
#include <thread>
#include <vector>

#include "fhbn/ordered.hpp"
#include "fhbn_messages.hpp"
#include "softnic_pair.hpp"

namespace {

using namespace softnic_test;
using fhbn_test::Random;

struct Course {
  const char* name;
  SoftHabits habits;
  std::uint32_t blocks;
  std::uint64_t messages;
  std::uint64_t most_bytes;
  int lines = 1;  // how often each message is told of, behind its one doorbell
};

constexpr std::uint64_t kSlots = 8;
constexpr std::size_t kPublished = 0;
constexpr std::size_t kConsumed = 128;
constexpr std::size_t kSlotsBegin = 256;

// All of a message follows from its number: its size, too.
std::uint64_t bytes_of(std::uint64_t message, const Course& course) {
  Random random(message);
  return random.one_in(3) ? random.below(kLongInline + 8) : random.below(course.most_bytes + 1);
}

// Where in some random bytes a message's own begin.
const std::byte* contents_of(std::uint64_t message) {
  static const std::vector<std::byte> all = [] {
    std::vector<std::byte> bytes(1 << 16);
    Random random(1);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random() >> 56);
    return bytes;
  }();
  return all.data() + message * 97 % (all.size() / 2);
}

void expect_whole(const std::byte* slot, std::uint64_t bytes, std::uint64_t message) {
  expect(std::memcmp(slot, contents_of(message), bytes) == 0,
         "message " + std::to_string(message) + " was told of before all of it had come");
}

std::size_t slot_at(std::uint64_t message, const Course& course) {
  return kSlotsBegin + (message % kSlots) * rounded_up(course.most_bytes, 64);
}

Side& line_at(const Host& host, std::size_t offset) {
  return *reinterpret_cast<Side*>(host.begin() + offset);
}

void await(const Side& line, std::uint64_t at_least, Mlx5Writer& writer) {
  const auto end = Clock::now() + kLong;
  while (load_acquire(line.seqno) < at_least) {
    expect(Clock::now() < end, "a line has not come");
    writer.check();
    std::this_thread::yield();
  }
}

void send_all(const Host& self, Mlx5Writer& writer, const Course& course) {
  for (std::uint64_t message = 0; message < course.messages; ++message) {
    if (message >= kSlots) await(line_at(self, kConsumed), message - kSlots + 1, writer);
    const std::uint64_t bytes = bytes_of(message, course);
    const std::size_t at = slot_at(message, course);
    std::memcpy(self.begin() + at, contents_of(message), bytes);
    writer.write(at, at, bytes);
    for (int i = 0; i < course.lines; ++i) writer.write_line(kPublished, {message + 1, State::kOpen, 1});
    writer.ring();
  }
  writer.drain(kLong);
}

void receive_all(const Host& self, Mlx5Writer& writer, const Course& course) {
  for (std::uint64_t message = 0; message < course.messages; ++message) {
    await(line_at(self, kPublished), message + 1, writer);
    expect_whole(self.begin() + slot_at(message, course), bytes_of(message, course), message);
    writer.write_line(kConsumed, {message + 1, State::kOpen, 1});
    writer.ring();
  }
  writer.drain(kLong);
}

void run(const Course& course) {
  const std::size_t bytes = kSlotsBegin + kSlots * rounded_up(course.most_bytes, 64);
  Host left(bytes, course.habits), right(bytes, course.habits);
  const QueuePair there = left.nic.connect(course.blocks, right.as_peer());
  const QueuePair back = right.nic.connect(course.blocks, left.as_peer());
  Mlx5Writer sender(there, left.local, right.remote(), "right");
  Mlx5Writer receiver(back, right.local, left.remote(), "left");
  std::thread other([&] { receive_all(right, receiver, course); });
  send_all(left, sender, course);
  other.join();

  const SoftCounts& sent = left.nic.queue(there.send.qpn)->counts();
  const SoftCounts& returned = right.nic.queue(back.send.qpn)->counts();
  expect((sent.completions - 1) * (course.blocks / 4) <= sender.state().next,
         "completions are not moderated");
  if (course.habits.drops_blueflame) {
    expect(sent.blueflames + returned.blueflames == 0, "a BlueFlame was taken that was to be missed");
  }
  expect(sent.fetched > 0, "no request was fetched from the queue");
  std::printf("%-28s %7llu messages, %7llu requests fetched, %7llu by BlueFlame, %llu completions\n",
              course.name, static_cast<unsigned long long>(course.messages),
              static_cast<unsigned long long>(sent.fetched + returned.fetched),
              static_cast<unsigned long long>(sent.blueflames + returned.blueflames),
              static_cast<unsigned long long>(sent.completions + returned.completions));
}

// One request at a time, of all sizes that are inline: each is taken from the register, over the queue's end
// too, unless the thread that writes it is interrupted; and from the queue when the register is to be missed.
void run_one_by_one(bool drops) {
  Host left(4096, {.drops_blueflame = drops}), right(4096, {});
  const QueuePair pair = left.nic.connect(16, right.as_peer());
  Mlx5Writer writer(pair, left.local, right.remote(), "right");
  const SoftCounts& counts = left.nic.queue(pair.send.qpn)->counts();
  for (std::uint64_t i = 0; i < 300; ++i) {
    const std::uint64_t bytes = 1 + i % kLongInline;
    std::memcpy(left.begin(), contents_of(i), bytes);
    writer.write(0, 128, bytes);
    writer.ring();
    const auto end = Clock::now() + kLong;
    while (counts.done <= i) {
      expect(Clock::now() < end, "a request was not done");
      std::this_thread::yield();
    }
    expect_whole(right.begin() + 128, bytes, i);
    writer.check();
  }
  // What was last written to each half stays there, but for the word that a NIC looks at.
  const std::uint64_t* const registers = pair.send.registers;
  expect(registers[2] != 0 && registers[pair.send.half_bytes / sizeof(std::uint64_t) + 2] != 0,
         "the halves of the registers are not used in turn");
  expect(counts.blueflames + counts.fetched == 300, "a request was taken twice");
  expect(drops ? counts.blueflames == 0 : counts.blueflames > 150,
         "only " + std::to_string(counts.blueflames) + " requests were taken from the register");
}

}  // namespace

int main() {
  run_one_by_one(false);
  run_one_by_one(true);
  run({"as it comes", {}, 64, 4000, 2000});
  run({"no BlueFlame", {.drops_blueflame = true}, 64, 4000, 2000});
  run({"reordered", {.reorders = true}, 64, 2000, 6000});
  run({"reordered, no BlueFlame", {.drops_blueflame = true, .reorders = true, .seed = 7}, 16, 2000, 6000});
  run({"the smallest queue", {}, 8, 2000, 300});
  run({"beyond 16 bits", {}, 256, 2000, 600, 40});
}
