// Runs the channel's CUDA kernels on the host (cuda_emulation.hpp) against the host's own Sender and
// Receiver: messages of every shape, both ways, full rings, numbers that wrap around, waits, and a peer in a
// thread of its own. How a GPU's memory orders things it does not show. Exits with 1 on a mismatch.

#include <algorithm>
#include <cstdio>
#include <thread>

#include "cuda_channel.hpp"

namespace {

using namespace lamina::fhbn;
using namespace lamina::fhbn::cuda;

constexpr std::uint64_t kNearWrap = 0 - std::uint64_t{3};
constexpr std::uint64_t kMessageBytes = 60'000;

std::shared_ptr<Segment> ring_of(std::uint32_t slots, std::uint64_t first_seqno = kNearWrap) {
  return Segment::create({kMessageBytes, slots, 7, first_seqno});
}

// Parts of all sizes that fit together, at all alignments. The first one may take a block several rounds.
std::vector<Memory> some_parts(Random& random, std::size_t count) {
  std::vector<Memory> parts;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t sizes[] = {0, 1, 15, 16, 17, 64, 333, 1024};
    const std::size_t size = i == 0 && random() % 4 == 0 ? 9000 + random() % 28'000 : sizes[random() % 8];
    parts.emplace_back(size, random() % 3 == 0 ? random() % 17 : 0);
    parts.back().fill(random);
  }
  return parts;
}

// As many, as large, elsewhere.
std::vector<Memory> room_for(const std::vector<Memory>& parts, Random& random, std::size_t more = 0) {
  std::vector<Memory> room;
  for (const Memory& part : parts) room.emplace_back(part.size() + more, random() % 2 * (random() % 17));
  return room;
}

std::size_t count_of(int round) { return static_cast<std::size_t>(round) % (kMostParts + 1); }
int blocks_of(Random& random) { return static_cast<int>(random() % 3) + 1; }

void check_device_to_host(std::uint32_t slots) {
  Random random(slots);
  const auto segment = ring_of(slots);
  DeviceEnd device(segment);
  Receiver host(segment, test_peer(), Duration::zero());
  for (int round = 0; round < 45; ++round) {
    const std::vector<Memory> parts = some_parts(random, count_of(round));
    // The very moment that the message is published, it is there.
    std::vector<Bytes> match;
    emulated::published = [&] { match = receive_on_host(host); };
    device.send(buffers_of(parts), blocks_of(random));
    emulated::published = nullptr;
    device.expect_sound("device to host");
    expect(match == copies_of(parts), "the host receives something else than the device has sent");
  }
  expect(!host.is_ready(), "the device has published more than it was asked to send");
}

void check_host_to_device(std::uint32_t slots) {
  Random random(slots + 100);
  const auto segment = ring_of(slots);
  DeviceEnd device(segment);
  Sender host(segment, test_peer(), Duration::zero());
  for (int round = 0; round < 45; ++round) {
    const std::vector<Memory> parts = some_parts(random, count_of(round));
    expect(send_from_host(host, copies_of(parts)), "the host does not send");
    const std::vector<Memory> room = room_for(parts, random);
    device.recv(buffers_of(room), blocks_of(random));
    device.expect_sound("host to device");
    expect(copies_of(room) == copies_of(parts), "the device receives something else than the host has sent");
    expect(host.consumed() == host.next_seqno(), "the device has not given back the slot");
  }
}

// What a captured graph does: the same arguments again and again, here past the numbers' end and around the
// ring many times, from one device to another.
void check_replay() {
  Random random(5);
  const auto segment = ring_of(4);
  DeviceEnd sender(segment);
  DeviceEnd receiver(segment);
  std::vector<Memory> parts;
  for (const std::size_t size : {100, 16, 0, 2049}) parts.emplace_back(size);
  const std::vector<Memory> room = room_for(parts, random);
  const Buffers from = buffers_of(parts);
  const Buffers to = buffers_of(room);
  for (int replay = 0; replay < 60; ++replay) {
    for (const Memory& part : parts) part.fill(random);
    sender.send(from);
    receiver.recv(to);
    expect(copies_of(room) == copies_of(parts), "a replay receives something else");
  }
  sender.expect_sound("replay");
  receiver.expect_sound("replay");
  expect(sender.cursor().next == kNearWrap + 60 && receiver.cursor().consumed == kNearWrap + 60,
         "replays are counted wrongly");
}

// A buffer may be larger than its part: the rest of it stays.
void check_larger_buffers() {
  Random random(6);
  const auto segment = ring_of(2);
  DeviceEnd device(segment);
  Sender host(segment, test_peer(), Duration::zero());
  const std::vector<Memory> parts = some_parts(random, 5);
  send_from_host(host, copies_of(parts));
  const std::vector<Memory> room = room_for(parts, random, 40);
  device.recv(buffers_of(room));
  device.expect_sound("larger buffers");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto end = static_cast<std::ptrdiff_t>(parts[i].size());
    const Bytes all = room[i].bytes();
    expect(Bytes(all.begin(), all.begin() + end) == parts[i].bytes(), "a larger buffer has something else");
    expect(std::all_of(all.begin() + end, all.end(), [](int byte) { return byte == 0xee; }),
           "a larger buffer is written beyond its part");
  }
}

void check_full_ring() {
  Random random(7);
  const auto segment = ring_of(2);
  DeviceEnd device(segment);
  Receiver host(segment, test_peer(), Duration::zero());
  std::vector<std::vector<Bytes>> sent, received;
  int waited = 0;
  for (int round = 0; round < 10; ++round) {
    const std::vector<Memory> parts = some_parts(random, 3);
    sent.push_back(copies_of(parts));
    // Only a sender that waits looks; the receiver takes its time.
    int looks = 0;
    emulated::meanwhile = [&] {
      if (++looks % 40 != 0) return;
      received.push_back(receive_on_host(host));
      ++waited;
    };
    device.send(buffers_of(parts));
    emulated::meanwhile = nullptr;
  }
  device.expect_sound("a full ring");
  expect(waited == 8, "a device does not wait for slots as often as it should");
  while (host.is_ready()) received.push_back(receive_on_host(host));
  expect(sent == received, "a device that waits for slots sends something else");
}

void check_awaited_message() {
  Random random(8);
  const auto segment = ring_of(2);
  DeviceEnd device(segment);
  Sender host(segment, test_peer(), Duration::zero());
  const std::vector<Memory> parts = some_parts(random, 4);
  int looks = 0;
  emulated::meanwhile = [&] {
    if (++looks == 100) send_from_host(host, copies_of(parts));
  };
  const std::vector<Memory> room = room_for(parts, random);
  const std::uint64_t acquired = emulated::acquires;
  device.recv(buffers_of(room));
  emulated::meanwhile = nullptr;
  // Each of them drops the L1 of its multiprocessor.
  expect(emulated::acquires - acquired < 100 / 5, "a wait acquires with every look");
  device.expect_sound("a message that is waited for");
  expect(copies_of(room) == copies_of(parts), "a message that was waited for is another one");
}

// Several messages held where they lie, read there, and given back in order.
void check_outstanding_messages() {
  const auto segment = ring_of(4);
  DeviceEnd device(segment);
  Sender host(segment, test_peer(), Duration::zero());
  for (std::uint8_t i = 0; i < 4; ++i) send_from_host(host, {Bytes(10, i), {}, Bytes(100, i)});
  for (std::uint8_t i = 0; i < 4; ++i) {
    device.poll();
    const lamina_cuda_channel_message& message = device.message();
    expect(message.seqno == kNearWrap + i && message.count == 3, "a held message is another one");
    expect(message.bytes[0] == 10 && message.bytes[1] == 0 && message.bytes[2] == 100,
           "a held message's parts have another size");
    expect(std::memcmp(message.part[2], Bytes(100, i).data(), 100) == 0,
           "a held message holds something else");
    const std::vector<Memory> room = [] {
      std::vector<Memory> some;
      for (const std::size_t size : {10, 0, 100}) some.emplace_back(size);
      return some;
    }();
    device.fetch(buffers_of(room));
    expect(room[0].bytes() == Bytes(10, i), "fetch() takes another message than the latest");
    expect(host.consumed() == kNearWrap, "fetch() gives back a slot by itself");
  }
  expect(!host.is_ready(), "there are more slots than there should be");
  for (std::uint64_t given = 1; given <= 4; ++given) {
    device.give_back();
    expect(host.consumed() == kNearWrap + given, "slots are not given back one by one");
  }
  device.expect_sound("held messages");
}

// The host's ends in a thread of their own, which sleep and are not woken.
void check_threads() {
  Random random(9);
  constexpr int kRounds = 150;
  const auto out = ring_of(2);
  const auto back = ring_of(2);
  out->ring().published.unheard = 1;
  back->ring().consumed.unheard = 1;
  std::thread echo([&] {
    Receiver receiver(out, test_peer(), Duration::zero());
    Sender sender(back, test_peer(), std::chrono::microseconds(20));
    for (int round = 0; round < kRounds; ++round) send_from_host(sender, receive_on_host(receiver));
  });
  DeviceEnd sender(out);
  DeviceEnd receiver(back);
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<Memory> parts = some_parts(random, count_of(round));
    const std::vector<Memory> room = room_for(parts, random);
    sender.send(buffers_of(parts), 1);
    receiver.recv(buffers_of(room), 1);
    expect(copies_of(room) == copies_of(parts), "an echo is not what was sent");
  }
  echo.join();
  sender.expect_sound("an echo");
  receiver.expect_sound("an echo");
}

// As blocks on different multiprocessors are, each by a thread of its own: anybody may come first or last.
template <typename Kernel, typename Args>
void launch_at_once(Kernel kernel, const Args& args) {
  constexpr int kBlocks = 3;
  std::vector<std::jthread> threads;
  for (int number = 0; number < kBlocks; ++number) {
    threads.emplace_back([&, number] {
      const auto block = [&](const Args& notified) {
        emulated::machine.blocks_x = kBlocks;
        emulated::machine.block_x = number;
        kernel(notified);
      };
      emulated::launch(block, 1, 1, kCopyThreads, 0, args);
    });
  }
}

// They wait together, for a slot and for a message.
void check_blocks_at_once() {
  Random random(10);
  constexpr int kRounds = 4;
  const auto out = ring_of(1);
  const auto back = ring_of(1);
  std::thread echo([&] {
    Receiver receiver(out, test_peer(), Duration::zero());
    Sender sender(back, test_peer(), Duration::zero());
    for (int message = 0; message < 2 * kRounds; ++message) send_from_host(sender, receive_on_host(receiver));
  });
  DeviceEnd sender(out);
  DeviceEnd receiver(back);
  std::vector<Memory> parts;
  for (const std::size_t size : {16 + 9000, 333, 0}) parts.emplace_back(size);
  const std::vector<Memory> room = room_for(parts, random);
  for (int round = 0; round < kRounds; ++round) {
    for (const Memory& part : parts) part.fill(random);
    for (int i = 0; i < 2; ++i) launch_at_once(cuda::send, SendArgs{sender.end(), buffers_of(parts)});
    for (int i = 0; i < 2; ++i) {
      launch_at_once(cuda::recv, FetchArgs{receiver.end(), buffers_of(room)});
      expect(copies_of(room) == copies_of(parts), "blocks that run at once move another message");
    }
  }
  echo.join();
  sender.expect_sound("blocks at once");
  receiver.expect_sound("blocks at once");
}

}  // namespace

int main() {
  for (const std::uint32_t slots : {1, 2, 8}) {
    check_device_to_host(slots);
    check_host_to_device(slots);
  }
  check_replay();
  check_larger_buffers();
  check_full_ring();
  check_awaited_message();
  check_outstanding_messages();
  check_threads();
  check_blocks_at_once();
  std::puts("cuda_channel_emulated: the kernels and the host understand each other");
}
