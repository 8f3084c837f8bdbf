// The library's own calls, channel.h, over a runtime whose device is the emulation (fake_cuda): what they
// launch, what they refuse, what they say, and that they give back what they take. Exits with 1 on a
// mismatch.

#include <cstdio>
#include <initializer_list>

#include "cuda/runtime.hpp"
#include "cuda_fake_device.hpp"
#include "fhbn/cuda/arguments.hpp"
#include "fhbn/cuda/channel.h"

namespace {

using namespace lamina::fhbn;
using namespace lamina::fhbn::cuda;
using Handle = lamina_cuda_channel_end*;

std::shared_ptr<Segment> ring(std::uint64_t message_bytes = 1 << 20) {
  return Segment::create({message_bytes, 2, 7, 0});
}

lamina_cuda_channel channel_of(const Segment& segment, lamina_cuda_channel_side side) {
  return {segment.memory(), segment.bytes(), side, 0, 1'000'000, "worker 3"};
}

Handle created(const Segment& segment, lamina_cuda_channel_side side) {
  const lamina_cuda_channel channel = channel_of(segment, side);
  Handle end = nullptr;
  expect_ok(lamina_cuda_channel_create(&channel, &end));
  return end;
}

void check_messages() {
  Random random(1);
  const auto segment = ring();
  const Handle sender = created(*segment, LAMINA_CUDA_CHANNEL_SENDS);
  const Handle receiver = created(*segment, LAMINA_CUDA_CHANNEL_RECEIVES);
  for (void (*kernel)(FetchArgs) : {&recv, &fetch}) {
    expect(fake_cuda::carveouts[reinterpret_cast<const void*>(kernel)] == cudaSharedmemCarveoutMaxShared,
           "where a kernel waits attention does not fit beside it");
  }
  expect(fake_cuda::registered.size() == 1, "one ring's memory is not pinned once");
  expect(segment->ring().published.unheard == 1 && segment->ring().consumed.unheard == 1,
         "a host's peer counts on being woken by a device");
  const lamina_cuda_channel_message* described = nullptr;
  expect_ok(lamina_cuda_channel_describe(receiver, &described));
  for (const std::size_t size : {0, 17, 16 << 10, 600'000}) {
    const Memory from(size), small(5), to(size), other(5);
    from.fill(random);
    small.fill(random);
    const lamina_cuda_channel_buffer parts[] = {from.buffer(), small.buffer()};
    const lamina_cuda_channel_buffer into[] = {to.buffer(), other.buffer()};
    fake_cuda::launches = 0;
    expect_ok(lamina_cuda_channel_send(sender, parts, 2, nullptr));
    expect(fake_cuda::blocks_of_last_copy == std::min(32, std::max(1, static_cast<int>(size) / 8192)),
           "a copy takes another number of blocks");
    expect(fake_cuda::launches == 1, "sending takes another number of kernels");
    fake_cuda::launches = 0;
    if (size == 17) {
      expect_ok(lamina_cuda_channel_poll(receiver, nullptr));
      expect(described->count == 2 && described->bytes[0] == 17, "a message is not described");
      expect_ok(lamina_cuda_channel_fetch(receiver, into, 2, nullptr));
      expect(segment->ring().consumed.seqno == described->seqno, "fetch() gives back a slot");
      expect_ok(lamina_cuda_channel_give_back(receiver, nullptr));
    } else {
      expect_ok(lamina_cuda_channel_recv(receiver, into, 2, nullptr));
    }
    expect(fake_cuda::launches == (size == 17 ? 3 : 1), "receiving takes another number of kernels");
    expect(to.bytes() == from.bytes() && other.bytes() == small.bytes(), "another message arrives");
  }
  expect(segment->ring().consumed.seqno == 4, "slots are not given back");
  expect_ok(lamina_cuda_channel_check(sender));
  expect_ok(lamina_cuda_channel_check(receiver));
  expect_ok(lamina_cuda_channel_destroy(receiver));
  expect(fake_cuda::registered.size() == 1, "the ring's memory is not pinned for its second end any more");
  expect(segment->ring().consumed.state == State::kClosed, "the peer is not told of the end");
  expect_ok(lamina_cuda_channel_destroy(sender));
  expect(segment->ring().published.state == State::kClosed, "the peer is not told of the end");
  expect(fake_cuda::registered.empty(), "the ring's memory stays pinned");
}

void check_failures() {
  const auto segment = ring();
  const Handle sender = created(*segment, LAMINA_CUDA_CHANNEL_SENDS);
  const Handle receiver = created(*segment, LAMINA_CUDA_CHANNEL_RECEIVES);
  expect_ok(lamina_cuda_channel_recv(receiver, nullptr, 0, nullptr));
  expect_status(LAMINA_CUDA_CHANNEL_LATE, lamina_cuda_channel_check(receiver),
                "nothing came from worker 3 in time (at message 0; this end does nothing since)");
  for (int i = 0; i < 2; ++i) expect_ok(lamina_cuda_channel_send(sender, nullptr, 0, nullptr));
  expect_ok(lamina_cuda_channel_abort(sender));
  expect_ok(lamina_cuda_channel_check(sender));
  expect_ok(lamina_cuda_channel_send(sender, nullptr, 0, nullptr));
  expect_status(LAMINA_CUDA_CHANNEL_LOST, lamina_cuda_channel_check(sender),
                "worker 3 has ended and takes no more messages (at message 2");
  expect_ok(lamina_cuda_channel_destroy(receiver));
  expect_ok(lamina_cuda_channel_destroy(sender));
}

void check_refusals() {
  const auto segment = ring(64);
  const Handle sender = created(*segment, LAMINA_CUDA_CHANNEL_SENDS);
  const Handle receiver = created(*segment, LAMINA_CUDA_CHANNEL_RECEIVES);
  const Memory memory(65);
  const lamina_cuda_channel_buffer part = memory.buffer();
  fake_cuda::launches = 0;
  const auto refused = [](const char* words, lamina_cuda_status status) {
    expect_status(LAMINA_CUDA_BAD_ARGUMENT, status, words);
  };
  refused("holds 64: open the channel", lamina_cuda_channel_send(sender, &part, 1, nullptr));
  refused("up to 14 parts", lamina_cuda_channel_recv(receiver, &part, 15, nullptr));
  refused("parts are missing", lamina_cuda_channel_fetch(receiver, nullptr, 1, nullptr));
  refused("it cannot send", lamina_cuda_channel_send(receiver, &part, 1, nullptr));
  refused("only sends", lamina_cuda_channel_recv(sender, &part, 1, nullptr));
  refused("only sends", lamina_cuda_channel_poll(sender, nullptr));
  refused("only sends", lamina_cuda_channel_fetch(sender, &part, 1, nullptr));
  refused("only sends", lamina_cuda_channel_give_back(sender, nullptr));
  refused("end is missing", lamina_cuda_channel_send(nullptr, &part, 1, nullptr));
  refused("end is missing", lamina_cuda_channel_check(nullptr));
  refused("nowhere to put", lamina_cuda_channel_describe(receiver, nullptr));
  const lamina_cuda_channel sound = channel_of(*segment, LAMINA_CUDA_CHANNEL_SENDS);
  refused("nowhere to put", lamina_cuda_channel_create(&sound, nullptr));
  expect(fake_cuda::launches == 0, "what is refused is launched");
  expect_ok(lamina_cuda_channel_check(sender));
  expect_ok(lamina_cuda_channel_destroy(receiver));
  expect_ok(lamina_cuda_channel_destroy(sender));
}

// What fails half-way leaves nothing behind (AddressSanitizer would tell), and the next attempt works.
void check_failing_runtime() {
  const auto segment = ring();
  const lamina_cuda_channel sound = channel_of(*segment, LAMINA_CUDA_CHANNEL_SENDS);
  Handle end = nullptr;
  for (const char* call : {"cudaFuncGetAttributes", "cudaHostRegister", "cudaHostAlloc", "cudaMalloc",
                           "cudaMemcpy", "cudaHostGetDevicePointer"}) {
    fake_cuda::failing = call;
    expect_status(LAMINA_CUDA_FAILED, lamina_cuda_channel_create(&sound, &end), "CUDA failed at ");
    expect(end == nullptr && fake_cuda::registered.empty(), std::string(call) + " leaves something behind");
    expect(segment->ring().published.unheard == 0, "a peer hears of an end that is not there");
  }
  fake_cuda::failing = "cudaGetDevice";
  expect_status(LAMINA_CUDA_NO_DEVICE, lamina_cuda_channel_create(&sound, &end), "there is no CUDA device");
  fake_cuda::failing.clear();
  fake_cuda::compute_capability = 7;
  expect_status(LAMINA_CUDA_NO_DEVICE, lamina_cuda_channel_create(&sound, &end), "older than what");
  fake_cuda::compute_capability = 8;
  expect_ok(lamina_cuda_channel_create(&sound, &end));
  fake_cuda::failing = "cudaLaunchKernel";
  expect_status(LAMINA_CUDA_FAILED, lamina_cuda_channel_send(end, nullptr, 0, nullptr), "sending a message");
  fake_cuda::failing = "cudaDeviceSynchronize";
  expect_status(LAMINA_CUDA_FAILED, lamina_cuda_channel_destroy(end), "last kernels");
  fake_cuda::failing.clear();
  expect(segment->ring().published.state == State::kClosed && fake_cuda::registered.empty(),
         "an end on a broken device does not close");
}

constexpr std::uint64_t kRoom = 1000;

void expect_refused(const std::string& words, const std::function<void()>& call) {
  const auto status = lamina::cuda::guarded(call);
  expect_status(LAMINA_CUDA_BAD_ARGUMENT, status, words);
}

void check_refused_channels() {
  const auto segment = ring(kRoom);
  const lamina_cuda_channel sound{
      segment->memory(), segment->bytes(), LAMINA_CUDA_CHANNEL_SENDS, 0, 1, "peer"};
  require_channel(&sound);
  expect(checked_preamble(sound).message_bytes == kRoom, "a sound ring is read wrongly");
  const auto refused = [&](const char* words, const std::function<void(lamina_cuda_channel&)>& spoil) {
    lamina_cuda_channel spoilt = sound;
    spoil(spoilt);
    expect_refused(words, [&] {
      require_channel(&spoilt);
      checked_preamble(spoilt);
    });
  };
  expect_refused("memory is missing", [] { require_channel(nullptr); });
  refused("memory is missing", [](lamina_cuda_channel& c) { c.memory = nullptr; });
  refused("sends or receives", [](lamina_cuda_channel& c) { c.side = 2; });
  refused("time to wait", [](lamina_cuda_channel& c) { c.timeout_ns = 0; });
  refused("name is missing", [](lamina_cuda_channel& c) { c.peer = nullptr; });
  refused("at a page", [](lamina_cuda_channel& c) { c.memory = static_cast<char*>(c.memory) + 128; });
  refused("too small", [](lamina_cuda_channel& c) { c.bytes = kSlotsOffset - 1; });
  refused("as large as it says", [](lamina_cuda_channel& c) { c.bytes += kSlotsOffset; });
  Preamble& preamble = segment->ring().preamble;
  preamble.slots = 3;
  refused("impossible shape", [](lamina_cuda_channel&) {});
  preamble.slots = 4;
  refused("as large as it says", [](lamina_cuda_channel&) {});
  preamble.magic ^= 1;
  refused("no ring of this version", [](lamina_cuda_channel&) {});
}

void check_refused_parts() {
  const Memory memory(64);
  std::vector<lamina_cuda_channel_buffer> parts(15, memory.buffer());
  expect(checked_buffers(parts.data(), 14).count == 14, "14 parts are not taken");
  expect(checked_buffers(nullptr, 0).count == 0, "no parts are not taken");
  expect_refused("up to 14 parts, not 15", [&] { checked_buffers(parts.data(), 15); });
  expect_refused("negative", [&] { checked_buffers(parts.data(), -1); });
  expect_refused("parts are missing", [] { checked_buffers(nullptr, 1); });
  parts[1] = {nullptr, 0};
  parts[2] = {nullptr, 1};
  checked_buffers(parts.data(), 2);
  expect_refused("a part is missing", [&] { checked_buffers(parts.data(), 3); });
  parts[0].bytes = 65;
  require_room(checked_buffers(parts.data(), 1), 65, "p");
  require_room(checked_buffers(parts.data(), 1), 66, "p");
  expect_refused("have 65 bytes together and a message to p holds 64",
                 [&] { require_room(checked_buffers(parts.data(), 1), 64, "p"); });
  for (lamina_cuda_channel_buffer& part : parts) part = {memory.data(), 0 - std::uint64_t{1}};
  expect_refused("larger messages",
                 [&] { require_room(checked_buffers(parts.data(), 14), kMostMessageBytes, "p"); });
}

}  // namespace

int main() {
  check_messages();
  check_failures();
  check_refusals();
  check_failing_runtime();
  check_refused_channels();
  check_refused_parts();
  std::puts("cuda_channel_library: the library launches what it should");
}
