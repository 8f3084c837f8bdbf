// Several streams at once, each a thread of the host whose kernels wait for those of another: messages both
// ways, graphs of which each replay moves the next ones, and who waits for whom when an end is closed. The
// device is the emulation, the calls are the library's own. Exits with 1 on a mismatch.

#include <atomic>
#include <cstdio>
#include <thread>

#include "cuda_streams.hpp"

namespace {

using namespace cuda_streams_test;
using Handle = lamina_cuda_channel_end*;

constexpr std::uint64_t kNearWrap = 0 - std::uint64_t{3};
constexpr std::uint64_t kMessageBytes = 60'000;

std::shared_ptr<Segment> ring_of(std::uint32_t slots) {
  return Segment::create({kMessageBytes, slots, 7, kNearWrap});
}

// One way, with both ends in this process.
struct Way {
  explicit Way(std::uint32_t slots)
      : ring(ring_of(slots)),
        sender(made_end(*ring, LAMINA_CUDA_CHANNEL_SENDS)),
        receiver(made_end(*ring, LAMINA_CUDA_CHANNEL_RECEIVES)) {}
  ~Way() {
    expect_ok(lamina_cuda_channel_destroy(sender));
    expect_ok(lamina_cuda_channel_destroy(receiver));
  }
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  std::shared_ptr<Segment> ring;
  Handle sender, receiver;
};

// Of one block, or now and then of several.
Memory some_part(Random& random) {
  Memory part(random() % 20 == 0 ? 33'000 + random() % 20'000 : random() % 3000);
  part.fill(random);
  return part;
}

void send(Handle end, const Memory& part, cudaStream_t stream) {
  const lamina_cuda_channel_buffer buffer = part.buffer();
  expect_ok(lamina_cuda_channel_send(end, &buffer, 1, stream));
}

void receive(Handle end, const Memory& room, cudaStream_t stream) {
  const lamina_cuda_channel_buffer buffer = room.buffer();
  expect_ok(lamina_cuda_channel_recv(end, &buffer, 1, stream));
}

// Each side draws what it sends, and what it is to receive as the other one does.
void exchange(Handle out, std::uint64_t ours, Handle in, std::uint64_t theirs) {
  const Stream stream;
  Random sent(ours), awaited(theirs);
  for (int round = 0; round < 100; ++round) {
    send(out, some_part(sent), stream);
    const Memory wanted = some_part(awaited);
    const Memory room(wanted.size());
    receive(in, room, stream);
    expect_ok(lamina_cuda_channel_check(in));
    expect(room.bytes() == wanted.bytes(), "a stream receives something else than the other has sent");
  }
  expect_ok(lamina_cuda_channel_check(out));
}

void check_both_ways(std::uint32_t slots) {
  const Way there(slots), back(slots);
  std::thread other([&] { exchange(back.sender, 2, there.receiver, 1); });
  exchange(there.sender, 1, back.receiver, 2);
  other.join();
}

// Two messages a replay, around the ring and past the numbers' end.
void check_replays() {
  constexpr std::uint64_t kReplays = 60;
  const Way way(2);
  std::thread sends([&] {
    Random random(3);
    const Stream stream;
    const Memory first(40'000), second(17);
    const Captured graph(stream, [&] {
      send(way.sender, first, stream);
      send(way.sender, second, stream);
    });
    expect(load_acquire(way.ring->ring().published.seqno) == kNearWrap, "what is captured is sent");
    for (std::uint64_t replay = 0; replay < kReplays; ++replay) {
      first.fill(random);
      second.fill(random);
      graph.replay();
    }
  });
  Random random(3);
  const Stream stream;
  const Memory first(40'000), second(17), wanted_first(40'000), wanted_second(17);
  const Captured graph(stream, [&] {
    receive(way.receiver, first, stream);
    expect_ok(lamina_cuda_channel_poll(way.receiver, stream));
    const lamina_cuda_channel_buffer buffer = second.buffer();
    expect_ok(lamina_cuda_channel_fetch(way.receiver, &buffer, 1, stream));
    expect_ok(lamina_cuda_channel_give_back(way.receiver, stream));
    // All others allocate, or wait for the device.
    Handle end = nullptr;
    const lamina_cuda_channel channel{way.ring->memory(), way.ring->bytes(), LAMINA_CUDA_CHANNEL_SENDS, 0, 1,
                                      "worker 3"};
    expect_status(LAMINA_CUDA_FAILED, lamina_cuda_channel_create(&channel, &end), "CUDA failed at");
  });
  for (std::uint64_t replay = 0; replay < kReplays; ++replay) {
    wanted_first.fill(random);
    wanted_second.fill(random);
    graph.replay();
    expect_ok(lamina_cuda_channel_check(way.receiver));
    expect(first.bytes() == wanted_first.bytes() && second.bytes() == wanted_second.bytes(),
           "a replay receives other messages than the next ones");
  }
  sends.join();
  expect_ok(lamina_cuda_channel_check(way.sender));
  expect(load_acquire(way.ring->ring().consumed.seqno) == kNearWrap + 2 * kReplays,
         "replays move another number of messages");
}

// What a receiver's stream, that waits for a message, ends with when the sender's end is closed. On a device
// of its own it hears of that. On the same one the closing waits for it, as for all that runs there, until
// something else ends the wait: so who closes several ends aborts all of them first.
void check_closing(int device, lamina_cuda_status wanted, const char* words) {
  const auto ring = ring_of(2);
  const Handle sender = made_end(*ring, LAMINA_CUDA_CHANNEL_SENDS);
  std::atomic<bool> waits = false, closing = false;
  std::thread stream([&] {
    expect_success(cudaSetDevice(device));
    const Handle receiver = made_end(*ring, LAMINA_CUDA_CHANNEL_RECEIVES);
    int looks = 0;
    emulated::meanwhile = [&] {
      std::this_thread::yield();
      waits = true;
      if (closing && ++looks == 20'000) expect_ok(lamina_cuda_channel_abort(receiver));
    };
    const Stream own;
    expect_ok(lamina_cuda_channel_recv(receiver, nullptr, 0, own));
    emulated::meanwhile = nullptr;
    expect_status(wanted, lamina_cuda_channel_check(receiver), words);
    expect_ok(lamina_cuda_channel_destroy(receiver));
  });
  while (!waits) std::this_thread::yield();
  const Stream idle;
  expect_success(cudaStreamSynchronize(idle));  // for which nobody has to wait
  closing = true;
  expect_ok(lamina_cuda_channel_destroy(sender));
  stream.join();
}

}  // namespace

int main() {
  for (const std::uint32_t slots : {1, 4}) check_both_ways(slots);
  check_replays();
  check_closing(1, LAMINA_CUDA_CHANNEL_CLOSED, "worker 3 has closed the channel");
  check_closing(0, LAMINA_CUDA_CHANNEL_LOST, "worker 3 has ended");
  expect(fake_cuda::registered.empty(), "memory stays pinned");
  std::puts("cuda_streams_emulated: streams wait for each other as they should");
}
